// The page: a conversation with the model of this server. Nothing is loaded from anywhere else.
import { ask, modelName, Refused } from "./api.js";
import * as store from "./store.js";
import { MessageView } from "./view.js";

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input"), settingsForm = $("settings"), keyForm = $("key-form");

let messages = store.loadMessages();
let settings = store.loadSettings();
let model = "";
let running = null; // the AbortController of the answer that is coming in
let afterKey = () => {}; // what waits for a key

function say(text) {
  $("status").textContent = text;
}

// ---- what is sent ----

function message(role, content) {
  return { role, content };
}

function asSent(m) {
  if (m.role !== "assistant") return m.role === "tool" ? { ...message("tool", m.content), tool_call_id: m.id } : message(m.role, m.content);
  const sent = message("assistant", m.content);
  if (m.reasoning) sent.reasoning_content = m.reasoning;
  if (m.calls?.length)
    sent.tool_calls = m.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
  return sent;
}

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
  "max_tokens", "seed"];

// The body of a request for an answer to the messages before `end`.
function requestBody(end) {
  const body = { model, messages: messages.slice(0, end).filter((m) => !m.error || m.content || m.calls?.length).map(asSent) };
  if (settings.system) body.messages.unshift(message("system", settings.system));
  for (const name of NUMBERS) if (settings[name]) body[name] = Number(settings[name]);
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "true" };
  if (settings.tools?.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

// ---- the conversation ----

function keep() {
  if (!store.saveMessages(messages)) say("This conversation is longer than the browser keeps.");
}

// Goes to the end when that was in sight before `change`.
function following(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (near) log.scrollTop = log.scrollHeight;
}

// What may be done with message i.
function actionsOf(i) {
  const actions = {}, m = messages[i], last = i === messages.length - 1;
  if (m.role === "user") actions.edit = (text) => answerAfter(i, message("user", text));
  if (m.role === "assistant") actions.regenerate = () => answerAfter(i);
  if (last && m.calls?.length)
    actions.results = (list) =>
      answerAfter(i + 1, ...list.map((text, k) => ({ ...message("tool", text), id: m.calls[k].id })));
  return actions;
}

function show() {
  log.replaceChildren(...messages.map((m, i) => new MessageView(m, running ? {} : actionsOf(i)).node));
  log.scrollTop = log.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  log.setAttribute("aria-busy", String(controller !== null));
}

// An answer that is being written, shown at most once a frame.
function growingView(answer) {
  const view = new MessageView(answer, {});
  let waiting = false;
  following(() => log.append(view.node));
  view.update(true);
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (running) following(() => view.update(true));
    });
  };
}

function noteFailure(answer, error, aborted) {
  if (aborted) {
    answer.finish = "stopped";
    return;
  }
  answer.error = error.message;
  if (error instanceof Refused && error.status === 401) askForKey(() => messages.at(-1) === answer && answerAfter(messages.length - 1));
}

// Keeps the messages before `end`, adds `more`, and asks for an answer to them.
async function answerAfter(end, ...more) {
  if (running) return;
  messages = [...messages.slice(0, end), ...more];
  const answer = { ...message("assistant", ""), reasoning: "", calls: [] };
  const controller = new AbortController(), begin = performance.now();
  const elapsed = () => (performance.now() - begin) / 1000;
  setRunning(controller);
  show();
  messages.push(answer);
  say("Reading the prompt");
  const draw = growingView(answer);
  try {
    const body = requestBody(messages.length - 1);
    await ask(body, store.loadKey(), controller.signal, answer, () => {
      if (answer.content || answer.reasoning || answer.calls.length) answer.first ??= elapsed();
      say("Answering");
      draw();
    });
  } catch (error) {
    noteFailure(answer, error, controller.signal.aborted);
  }
  answer.seconds = elapsed();
  setRunning(null);
  show();
  keep();
  say(answer.error ? "The answer failed" : answer.finish === "stopped" ? "Stopped" : "The answer is complete");
}

function send() {
  const text = input.value;
  if (running || text.trim() === "") return;
  input.value = "";
  fitInput();
  answerAfter(messages.length, message("user", text));
}

function newChat() {
  running?.abort();
  messages = [];
  keep();
  show();
  say("");
  input.focus();
}

// ---- settings, key, colours ----

function openSettings(open) {
  settingsForm.hidden = !open;
  $("open-settings").setAttribute("aria-expanded", String(open));
  (open ? settingsForm.elements.system : input).focus();
}

function fillSettings() {
  for (const field of settingsForm.elements) if (field.name) field.value = settings[field.name] ?? "";
}

function checkTools() {
  const field = settingsForm.elements.tools;
  let problem = "";
  try {
    if (field.value.trim() && !Array.isArray(JSON.parse(field.value))) problem = "This is no JSON list.";
  } catch (error) {
    problem = error.message;
  }
  field.setCustomValidity(problem);
  return problem === "";
}

// Takes over every field that is valid.
function readSettings() {
  checkTools();
  for (const field of settingsForm.elements) if (field.name && field.validity.valid) settings[field.name] = field.value;
  store.saveSettings(settings);
}

function askForKey(then) {
  afterKey = then;
  keyForm.hidden = false;
  $("key").focus();
}

const THEMES = { auto: ["Auto", "as the system"], light: ["Light", "light"], dark: ["Dark", "dark"] };

function setTheme(theme) {
  const [label, spoken] = THEMES[theme] ?? THEMES.auto;
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = label;
  $("theme").setAttribute("aria-label", `Colours: ${spoken}`);
  store.saveTheme(theme);
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
}

// ---- the page ----

function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

// Finds the model, waiting while it is loaded.
async function connect() {
  try {
    model = await modelName(store.loadKey());
    $("model").textContent = model;
    say("");
  } catch (error) {
    if (error.status === 401) return askForKey(() => {});
    say(error.status === 503 ? "The model is being loaded" : error.message);
    setTimeout(connect, 1000);
  }
}

function onKey(event) {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if (!settingsForm.hidden) openSettings(false);
}

function listen() {
  $("composer").addEventListener("submit", (event) => (event.preventDefault(), send()));
  input.addEventListener("input", fitInput);
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", onKey);
  $("stop").addEventListener("click", () => (running?.abort(), input.focus()));
  $("new").addEventListener("click", newChat);
  $("theme").addEventListener("click", nextTheme);
  $("open-settings").addEventListener("click", () => openSettings(settingsForm.hidden));
  settingsForm.addEventListener("input", readSettings);
  settingsForm.addEventListener("submit", (event) => (event.preventDefault(), openSettings(false)));
  $("defaults").addEventListener("click", () => (settingsForm.reset(), readSettings()));
  keyForm.addEventListener("submit", (event) => {
    event.preventDefault();
    store.saveKey($("key").value);
    $("key").value = "";
    keyForm.hidden = true;
    input.focus();
    connect().then(afterKey);
  });
  addEventListener("pagehide", keep);
}

setTheme(store.loadTheme());
fillSettings();
listen();
show();
connect();
input.focus();
