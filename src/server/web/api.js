// The server's API: what the page asks, and an answer taken out of the events that come back.

// A refusal: the HTTP status and the server's own sentence.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, key, options = {}) {
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const text = await response.text();
  let message = `the server answers ${response.status}`;
  try {
    message = JSON.parse(text).error.message ?? message;
  } catch {
    // not in the envelope: the status says enough
  }
  const wait = response.headers.get("Retry-After");
  throw new Refused(response.status, wait ? `${message} (try again in ${wait} s)` : message);
}

// The name of the model that is served.
export async function modelName(key) {
  const response = await request("v1/models", key);
  const list = (await response.json()).data;
  if (!list?.length) throw new Error("the server has no model");
  return list[0].id;
}

// Calls `onData` with the data of each event until "[DONE]" or the end.
async function readEvents(body, onData) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return false;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return true;
      onData(JSON.parse(data));
    }
  }
}

function addCall(calls, piece) {
  const call = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
  call.id ||= piece.id ?? "";
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

// Adds one event to the answer {content, reasoning, calls, finish, usage}.
function addEvent(answer, event) {
  if (event.error) throw new Error(event.error.message ?? "the server reports an error");
  if (event.usage) answer.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const piece of delta.tool_calls ?? []) addCall(answer.calls, piece);
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

// Asks for an answer and fills `answer` as it comes, calling onChange after each event.
export async function ask(body, key, signal, answer, onChange) {
  const response = await request("v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const whole = await readEvents(response.body, (event) => {
    addEvent(answer, event);
    onChange();
  });
  if (!whole && !answer.finish) throw new Error("the connection ended before the answer did");
}
