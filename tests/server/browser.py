"""A headless browser on the page, for test_page.py."""

import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1000,900"]


def start():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))


class Page:
    """What a person does with the page, and sees."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url
        driver.get("about:blank")  # a page that is left keeps what it has
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.open()

    def open(self):
        """Opens the page anew, and waits until it knows the model or asks for a key."""
        self.driver.get(self.url)
        self.wait(lambda: self.text("#model") or self.visible("#key"))

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        found = self.all(selector)
        assert len(found) == 1, f"{len(found)} elements are {selector}"
        return found[0]

    def text(self, selector):
        return self.one(selector).get_property("textContent").strip()

    def texts(self, selector):
        """What these elements show, all at one moment."""
        return self.driver.execute_script("return [...document.querySelectorAll(arguments[0])].map(n => n.innerText)", selector)

    def visible(self, selector):
        return self.one(selector).is_displayed()

    def wait(self, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"did not come to pass; the page shows: {self.text('body')!r}"
            time.sleep(0.02)

    def press(self, *keys):
        """Types into whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def click(self, label, within="body"):
        buttons = [b for b in self.all(f"{within} button") if b.is_displayed() and b.text == label]
        assert buttons, f"no button {label} in {within}"
        buttons[-1].click()

    def ask(self, text):
        self.one("#input").send_keys(text, Keys.ENTER)

    def wait_for_end(self):
        self.wait(lambda: self.visible("#send"))

    def answers(self):
        return self.texts(".message.assistant .content")

    def complaints(self):
        """What the browser logged as wrong: violations of the policy, errors of scripts. Reading empties the log."""
        lines = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [entry["message"] for entry in lines]
