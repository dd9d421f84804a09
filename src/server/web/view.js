// One message on the page. Whatever it says is put in as text, or by markdown.js.
import { copyText, showMarkdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Result of a tool" };

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function button(label, onClick) {
  const node = element("button", { type: "button" }, label);
  node.addEventListener("click", () => onClick(node));
  return node;
}

// "128 tokens, 54.3 tokens/s, first after 0.21 s; prompt 310, 250 of it cached"
function figures(message) {
  const { usage, seconds, first } = message;
  if (!usage) return "";
  const n = usage.completion_tokens, spent = seconds - first;
  const parts = [`${n} token${n === 1 ? "" : "s"}`];
  if (n > 1 && spent > 0) parts.push(`${((n - 1) / spent).toFixed(1)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(2)} s`);
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  return `${parts.join(", ")}; prompt ${usage.prompt_tokens}, ${cached} of it cached`;
}

const ENDINGS = { length: "cut at the limit of tokens", stopped: "stopped", content_filter: "withheld" };

function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export class MessageView {
  // `actions` has edit(), regenerate(), results(list); what is missing is not offered.
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = element("article", { class: `message ${message.role}`, "aria-label": NAMES[message.role] });
    this.thought = element("div");
    this.reasoning = element("details", { class: "reasoning" }, element("summary", {}, "Reasoning"), this.thought);
    this.content = element("div", { class: "content" });
    this.calls = element("div");
    this.error = element("p", { class: "error", role: "alert" });
    this.footer = element("footer");
    const parts = [this.reasoning, this.content, this.calls, this.error, this.footer];
    this.node.append(element("h2", {}, NAMES[message.role]), ...parts);
    this.update(false);
  }

  // Shows what the message has by now; `working` while more is to come.
  update(working) {
    const m = this.message;
    this.reasoning.hidden = !m.reasoning;
    this.thought.textContent = m.reasoning ?? "";
    if (m.role === "assistant") showMarkdown(this.content, m.content);
    else this.content.textContent = m.content;
    this.content.hidden = m.content === "" && !working;
    this.content.classList.toggle("working", working);
    this.showCalls(working);
    this.error.hidden = !m.error;
    this.error.textContent = m.error ?? "";
    this.node.setAttribute("aria-busy", String(working));
    this.showFooter(working);
  }

  showCalls(working) {
    const calls = this.message.calls ?? [];
    const nodes = calls.map((call, i) => {
      const node = element("section", { class: "call", "aria-label": `Call of ${call.name}` },
        element("p", {}, "Call of ", element("code", {}, call.name)), element("pre", {}, prettyArguments(call.arguments)));
      if (!working && this.actions.results)
        node.append(element("textarea", { rows: "2", placeholder: "What the function returns", "aria-label": `Result of call ${i + 1}` }));
      return node;
    });
    if (nodes.length && !working && this.actions.results) {
      const fields = nodes.map((node) => node.querySelector("textarea"));
      const values = () => fields.map((field) => field.value);
      nodes.push(button("Send results", () => this.actions.results(values())));
    }
    this.calls.replaceChildren(...nodes);
  }

  showFooter(working) {
    const m = this.message, parts = [];
    if (!working) {
      const text = [figures(m), ENDINGS[m.finish]].filter(Boolean).join("; ");
      if (text) parts.push(element("span", { class: "quiet figures" }, text));
      if (m.content) parts.push(button("Copy", (node) => copyText(m.content, node)));
      if (this.actions.edit) parts.push(button("Edit", () => this.edit()));
      if (this.actions.regenerate) parts.push(button("Regenerate", () => this.actions.regenerate()));
    }
    this.footer.replaceChildren(...parts);
  }

  // Puts a field in place of the content until it is kept or left.
  edit() {
    const field = element("textarea", { rows: "3", "aria-label": "Edit your message" });
    field.value = this.message.content;
    const leave = () => {
      form.remove();
      this.content.hidden = this.footer.hidden = false;
    };
    const keep = () => field.value.trim() && this.actions.edit(field.value);
    const form = element("div", { class: "editing" }, field, button("Ask anew", keep), button("Leave as it was", leave));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) keep();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.content.hidden = this.footer.hidden = true;
    this.content.after(form);
    field.focus();
  }
}
