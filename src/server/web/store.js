// What a reload keeps: the conversation, the settings and the colours, in this browser. The key is kept for as long as
// the tab is open.

const PREFIX = "polymath.";

function read(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// False when there is no room, or no storage at all.
function write(storage, name, value) {
  try {
    storage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

const isMessage = (m) => ["user", "assistant", "tool"].includes(m?.role) && typeof m.content === "string";

export function loadMessages() {
  const list = read(localStorage, "messages", []);
  return Array.isArray(list) && list.every(isMessage) ? list : [];
}

export const saveMessages = (messages) => write(localStorage, "messages", messages);
export const loadSettings = () => read(localStorage, "settings", {});
export const saveSettings = (settings) => write(localStorage, "settings", settings);
export const loadTheme = () => read(localStorage, "theme", "auto");
export const saveTheme = (theme) => write(localStorage, "theme", theme);
export const loadKey = () => read(sessionStorage, "key", "");
export const saveKey = (key) => write(sessionStorage, "key", key);
