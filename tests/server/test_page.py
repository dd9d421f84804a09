"""The web page in a headless browser: against the server itself, and against a stand-in that sends what no model would."""

import itertools
import threading
import urllib.request

import browser
import pytest
from scripted import Scripted, delta, text, usage
from selenium.webdriver.common.keys import Keys

HOSTILE = """<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>

[a](javascript:document.title='owned') [b](data:text/html,x) [c](//evil.example/) ![d](https://evil.example/x.png)

<a href="https://evil.example" style="position:fixed">e</a> &lt;b&gt;

```"><script>
</code></pre><script>document.title='owned'</script>
```

| <b>x</b> | [y](vbscript:z) |
|---|---|
| <iframe src=/> | `<i>` |
"""


@pytest.fixture(scope="module")
def driver():
    driver = browser.start()
    yield driver
    driver.quit()


@pytest.fixture(scope="module", autouse=True)
def screenshots(build_dir):
    folder = build_dir / "screenshots"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def scripted(server):
    """A stand-in with the page of the server and its headers."""

    def get(path):
        with urllib.request.urlopen(server.url + path) as response:
            wanted = ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options")
            return response.status, {name: response.headers[name] for name in wanted}, response.read()

    with Scripted(get) as scripted:
        yield scripted


@pytest.fixture
def page(driver, scripted):
    page = browser.Page(driver, scripted.url)
    yield page
    assert page.complaints() == []


@pytest.fixture
def real(driver, server):
    page = browser.Page(driver, server.url)
    yield page
    assert page.complaints() == []


# ---- the server's own answers ----


def test_a_conversation(real, screenshots):
    """Typed by keyboard alone; the second answer computes only what is new; a reload keeps all of it."""
    assert real.driver.switch_to.active_element == real.one("#input")
    real.press("My name is Victor.", Keys.ENTER)
    real.wait_for_end()
    real.press("What is my name?", Keys.ENTER)
    real.wait_for_end()
    assert real.answers() == ["I will remember that.", "Your name is Victor."]
    figures = real.texts(".figures")[-1]
    assert "tokens/s" in figures and "cached" in figures and "; prompt" in figures and ", 0 of it" not in figures
    real.driver.save_screenshot(str(screenshots / "conversation.png"))
    real.open()
    assert real.answers() == ["I will remember that.", "Your name is Victor."]
    real.ask("What is my name?")
    real.wait_for_end()
    assert real.answers()[-1] == "Your name is Victor."


def test_regenerate_and_edit(real):
    real.ask("What is a dog?")
    real.wait_for_end()
    first = real.answers()
    real.click("Regenerate")
    real.wait_for_end()
    assert real.answers() == first
    real.click("Edit")
    field = real.one(".editing textarea")
    assert field.get_property("value") == "What is a dog?"
    field.clear()
    field.send_keys("What is 27 plus 15?", Keys.ENTER)
    real.wait_for_end()
    assert real.answers() == ["27 plus 15 is 42."]
    assert real.texts(".message.user .content") == ["What is 27 plus 15?"]


def test_limit_of_tokens(real):
    real.click("Settings")
    real.one("[name=max_tokens]").send_keys("3")
    real.press(Keys.ESCAPE)
    real.ask("What is a dog?")
    real.wait_for_end()
    assert real.texts(".figures")[-1].startswith("3 tokens") and "cut at the limit" in real.texts(".figures")[-1]


# ---- what comes in ----


def test_text_shows_while_it_comes(page, scripted):
    go = threading.Event()
    scripted.answers = [[delta(reasoning_content="Hm."), delta(content="First half"), go, *text(", second.")]]
    page.ask("Go on")
    page.wait(lambda: page.answers() == ["First half"])
    assert page.visible("#stop") and not page.visible("#send")
    assert page.text(".assistant .reasoning > div") == "Hm."
    assert page.one(".assistant .reasoning").get_property("open") is False
    go.set()
    page.wait_for_end()
    assert page.answers() == ["First half, second."]


@pytest.mark.parametrize("how", ["escape", "button"])
def test_stop(page, scripted, how):
    """The connection is closed; what came stays, and is part of what is asked next."""
    scripted.answers = [itertools.chain([delta(content="Begun")], endless()), text("Next")]
    page.ask("Go on")
    page.wait(lambda: page.answers() and page.answers()[0].startswith("Begun"))
    page.press(Keys.ESCAPE) if how == "escape" else page.click("Stop")
    page.wait_for_end()
    assert scripted.left.wait(10), "the connection is still open"
    assert page.answers()[0].startswith("Begun") and "stopped" in page.texts(".figures")[-1]
    page.ask("And now?")
    page.wait_for_end()
    roles = [message["role"] for message in scripted.requests[-1][2]["messages"]]
    assert roles == ["user", "assistant", "user"]


def endless():
    """Events for about twenty seconds."""
    for _ in range(2000):
        event = threading.Event()
        threading.Timer(0.01, event.set).start()
        yield event
        yield delta(content=" more")


def test_a_reload_in_the_middle(page, scripted):
    """Keeps what has come."""
    scripted.answers = [[delta(content="Half an answer"), threading.Event()]]
    page.ask("Go on")
    page.wait(lambda: page.answers() == ["Half an answer"])
    page.open()
    assert page.answers() == ["Half an answer"]


def test_hostile_text_stays_text(page, scripted, screenshots):
    scripted.answers = [text(*[HOSTILE[i : i + 7] for i in range(0, len(HOSTILE), 7)])]
    page.ask(HOSTILE.partition("\n")[0])
    page.wait_for_end()
    assert page.driver.title == "polymath"
    allowed = "p a code pre figure figcaption button table thead tbody tr th td div br"
    inside = page.driver.execute_script(
        "return [...document.querySelectorAll('.message .content *')].map(n => n.tagName.toLowerCase())"
    )
    assert set(inside) <= set(allowed.split()), inside
    links = {link.text: link for link in page.all(".message.assistant .content a")}
    assert links.keys() == {"d", "https://evil.example"}, links.keys()
    assert links["d"].get_attribute("href") == "https://evil.example/x.png"
    assert {"noopener", "noreferrer"} <= set(links["d"].get_attribute("rel").split())
    assert "<script>document.title='owned'</script>" in page.answers()[0]
    assert page.texts(".message.user .content")[0] == HOSTILE.partition("\n")[0]
    page.driver.save_screenshot(str(screenshots / "hostile.png"))


MARKDOWN = """# One

Some **bold *both* text**, _em_, ~~gone~~, `a*b`, snake_case_word, 2 * 3 * 4, \\*plain\\*.
Next line with https://example.org/a_(b), and [a link](https://example.org/).

- a
- b
  1. c
  2. d

3. three

> said

| l | r |
|:--|--:|
| 1 | 2 |

---

~~~python
x = "</code>"
"""
MARKUP = (
    "<h3>One</h3><p>Some <strong>bold <em>both</em> text</strong>, <em>em</em>, <del>gone</del>, <code>a*b</code>, "
    "snake_case_word, 2 * 3 * 4, *plain*.<br>Next line with <a>https://example.org/a_(b)</a>, and <a>a link</a>.</p>"
    "<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li></ul><ol><li>three</li></ol><blockquote><p>said</p>"
    "</blockquote><div><table><thead><tr><th>l</th><th>r</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody>"
    "</table></div><hr><figure><figcaption>python<button>Copy</button></figcaption><pre><code>"
    'x = "&lt;/code&gt;"\n</code></pre></figure>'
)
BARE = """const n = document.querySelector('.message.assistant .content').cloneNode(true);
for (const e of n.querySelectorAll('*')) for (const a of [...e.attributes]) e.removeAttribute(a.name);
return n.innerHTML;"""


@pytest.mark.parametrize("size", [1, 5, 10000])
def test_markdown(page, scripted, size):
    """What shows does not depend on the pieces."""
    scripted.answers = [text(*[MARKDOWN[i : i + size] for i in range(0, len(MARKDOWN), size)])]
    page.ask("Show")
    page.wait_for_end()
    assert page.driver.execute_script(BARE) == MARKUP


def test_markdown_of_any_text_is_quick(page):
    """Openers without an end, deep nesting, long lines: 100,000 characters take far less than what is quadratic in them."""
    script = """const done = arguments[arguments.length - 1];
import('/markdown.js').then(({showMarkdown}) => {
  const slow = [];
  for (const part of ['*a ', '**a', '_', '`', '[', '![a](', '<http', '> ', '- ', '  - a\\n', '|', '#', '~~~\\n', 'http://a',
                      '\\\\', '((', '[a](http://b ', '1. ', '\\n', '```a\\n', 'a|b\\n-|-\\n', '* * ']) {
    const text = part.repeat(Math.ceil(1e5 / part.length)), begin = performance.now();
    showMarkdown(document.createElement('div'), text);
    const took = performance.now() - begin;
    if (took > 4000) slow.push(`${part} ${Math.round(took)} ms`);
  }
  done(slow);
}).catch(e => done([String(e)]));"""
    page.driver.set_script_timeout(60)
    assert page.driver.execute_async_script(script) == []


def test_calls_of_tools(page, scripted):
    """A call shows with its arguments; what the person gives as its result goes back, with the call before it."""
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]'
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"city":"<b>"}'}}
    scripted.answers = [
        [delta(tool_calls=[call]), delta(tool_calls=[more]), delta("tool_calls"), usage(9, 9), "[DONE]"],
        text("It rains."),
    ]
    page.click("Settings")
    page.one("[name=tools]").send_keys(tools)
    page.one("[name=system]").send_keys("Be brief.")
    page.one("[name=temperature]").send_keys("0")
    page.click("Close")
    page.ask("How is the weather?")
    page.wait_for_end()
    assert page.text(".call code") == "weather" and page.text(".call pre") == '{\n  "city": "<b>"\n}'
    page.one(".call textarea").send_keys("rain")
    page.click("Send results")
    page.wait_for_end()
    assert page.answers()[-1] == "It rains."
    sent = scripted.requests[-1][2]
    assert sent["tools"][0]["function"]["name"] == "weather" and sent["temperature"] == 0 and "top_p" not in sent
    function = {"name": "weather", "arguments": '{"city":"<b>"}'}
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
    ]


def test_failures_are_told(page, scripted):
    refusal = {"error": {"message": "the prompt has <b>9</b> tokens"}}
    broken = [delta(content="Half"), {"error": {"message": "out of luck"}}]
    scripted.answers = [(400, refusal), (500, b"<html>"), broken, [delta(content="Half")], text("Fine")]
    words = ["the prompt has <b>9</b> tokens", "the server answers 500", "out of luck", "the connection ended"]
    page.ask("Go on")
    for word in words:
        page.wait_for_end()
        assert word in page.text(".assistant .error")
        page.click("Regenerate")
    page.wait_for_end()
    assert page.answers() == ["Fine"] and not page.visible(".assistant .error")
    log = page.complaints()  # the browser tells of statuses itself
    assert len(log) == 2 and all("Failed to load resource" in line for line in log), log


def test_a_key_is_asked_for(page, scripted):
    scripted.answers = [(401, {"error": {"message": "the key is missing"}}), text("Welcome")]
    page.ask("Go on")
    page.wait(lambda: page.visible("#key"))
    page.press("secret", Keys.ENTER)
    page.wait(lambda: page.answers() == ["Welcome"])
    assert scripted.requests[-1][1]["Authorization"] == "Bearer secret"
    assert page.driver.execute_script("return Object.values(localStorage).join()").find("secret") < 0
    assert len(page.complaints()) == 1


def test_light_and_dark(page):
    """Follows the system until the button says otherwise, also after a reload."""
    colour = lambda: page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    scheme = lambda value: page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": value}]}
    )
    scheme("light")
    light = colour()
    scheme("dark")
    dark = colour()
    assert light != dark
    page.click("Auto")
    assert colour() == light
    page.click("Light")
    scheme("light")
    page.open()
    assert colour() == dark
    scheme("")


def test_on_a_phone(page, scripted, screenshots):
    """Nothing is wider than the screen, and what is typed into is in sight."""
    page.driver.set_window_size(500, 800)  # the narrowest window that there is; the rest is emulated
    phone = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    scripted.answers = [text(MARKDOWN, "\n~~~\n", "a" * 300, "\n\n```\n", "b" * 300)]
    page.ask("Show")
    page.wait_for_end()
    page.driver.save_screenshot(str(screenshots / "phone.png"))
    tops = {page.one(name).rect["y"] for name in ("#new", "#open-settings", "#theme")}
    assert len(tops) == 1 and page.one("header.bar").rect["height"] < 2 * page.one("#new").rect["height"], tops
    for step in ("conversation", "settings"):
        width = page.driver.execute_script("return document.documentElement.scrollWidth")
        assert width <= 360, (step, width)
        box = page.one("#input").rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["y"] + box["height"] <= 640, (step, box)
        page.click("Settings")
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.driver.set_window_size(1000, 900)


def test_keyboard(page, scripted):
    """Shift+Enter begins a line, Enter sends, an empty message is none; everything is in reach of the tabulator."""
    scripted.answers = [text("Yes")]
    page.press(Keys.ENTER)
    page.press("one", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "two", Keys.ENTER)
    page.wait_for_end()
    assert [body["messages"][0]["content"] for _, _, body in scripted.requests] == ["one\ntwo"]
    reached = []
    for _ in range(14):  # round from the message
        page.press(Keys.TAB)
        reached.append(page.driver.execute_script("return document.activeElement.innerText || document.activeElement.id"))
    wanted = ["Send", "Skip to the message", "New chat", "Settings", "Auto", "Copy", "Edit", "Copy", "Regenerate", "input"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted, reached
    page.click("New chat")
    assert page.all(".message") == [] and page.driver.switch_to.active_element == page.one("#input")
    page.open()
    assert page.all(".message") == []


def test_copying(page, scripted):
    """Code and whole messages, also where the browser has no clipboard for pages."""
    scripted.answers = [text("```c\nint x;\n```\nand *this*")]
    page.ask("Show")
    page.wait_for_end()
    for broken in False, True:
        if broken:
            page.driver.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        for where, copied in ("figure", "int x;"), (".assistant footer", "```c\nint x;\n```\nand *this*"):
            page.one("#input").clear()
            page.driver.execute_script("document.querySelector(arguments[0]).textContent = 'Copy'", f"{where} button")
            page.click("Copy", where)
            page.wait(lambda: page.texts(f"{where} button")[0] == "Copied")
            page.one("#input").click()
            page.press(Keys.CONTROL, "v")
            assert page.one("#input").get_property("value") == copied
    page.one("#input").clear()


def test_names_for_those_who_do_not_see(page):
    """Every field and button has one."""
    page.click("Settings")
    script = """const name = (n) => n.ariaLabel || n.textContent.trim() || n.labels?.[0]?.textContent.trim();
return [...document.querySelectorAll('button, input, textarea, select')].filter(n => !name(n)).map(n => n.outerHTML);"""
    assert page.driver.execute_script(script) == []
