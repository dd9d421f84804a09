// Markdown to DOM nodes. What a model writes becomes text nodes inside elements made here, and never markup: an answer
// cannot bring an element, an attribute or a script of its own. Links go to http and https only.
//
// The dialect is what models write: paragraphs, headings, lists, quotes, tables, fenced code, emphasis, links. Every
// search looks a bounded number of characters ahead, all searches in a text together as many as are in proportion to its
// length, and nesting is bounded, so that no text takes long.

const MAX_DEPTH = 10;
const MAX_AHEAD = 1000;
const MAX_ADDRESS = 2000;
let ahead = 0; // how many characters searches in this text may still look at

function element(name, children = [], attributes = {}) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// ---- inline ----

// The address when it is one to link to, else null.
function safeAddress(text) {
  if (!/^https?:\/\//i.test(text)) return null;
  try {
    return new URL(text).href;
  } catch {
    return null;
  }
}

function link(address, children) {
  return element("a", children, { href: address, rel: "noopener noreferrer nofollow", target: "_blank" });
}

const isSpace = (c) => c === undefined || /\s/.test(c);
const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);

function runLength(s, i) {
  let n = 1;
  while (s[i + n] === s[i]) n++;
  return n;
}

// `code`: ends at a run of as many backticks.
function codeSpan(s, i) {
  const n = runLength(s, i);
  const end = Math.min(s.length, i + MAX_AHEAD);
  for (let j = i + n; j < end && ahead-- > 0; j++) {
    if (s[j] !== "`") continue;
    const closing = runLength(s, j);
    if (closing === n) {
      let text = s.slice(i + n, j).replaceAll("\n", " ");
      if (text.length > 2 && text.startsWith(" ") && text.endsWith(" ")) text = text.slice(1, -1);
      return { end: j + n, nodes: () => [element("code", [text])] };
    }
    j += closing - 1;
  }
  return null;
}

const EMPHASIS = { "*1": ["em"], "*2": ["strong"], "*3": ["strong", "em"], "_1": ["em"], "_2": ["strong"],
  "_3": ["strong", "em"], "~2": ["del"] };

// Where a run that closes `n` characters of `c`, opened before `from`, has its last n; -1 when there is none.
function closingRun(s, from, c, n) {
  const end = Math.min(s.length, from + MAX_AHEAD);
  for (let j = from; j < end && ahead-- > 0; j++) {
    if (s[j] === "\\") {
      j++;
    } else if (s[j] === "`") {
      const code = codeSpan(s, j);
      if (code) j = code.end - 1;
    } else if (s[j] === c) {
      const run = runLength(s, j);
      const closes = run >= n && j > from && !isSpace(s[j - 1]) && (c !== "_" || !isWord(s[j + run]));
      if (closes && (run === n || n === 2 || run === 3)) return j + run - n;
      j += run - 1;
    }
  }
  return -1;
}

function emphasis(s, i, depth) {
  const c = s[i], n = runLength(s, i), names = EMPHASIS[c + n];
  if (!names || isSpace(s[i + n]) || (c === "_" && isWord(s[i - 1]))) return null;
  const close = closingRun(s, i + n, c, n);
  if (close < 0) return null;
  const inner = s.slice(i + n, close);
  return {
    end: close + n,
    nodes: () => [names.reduceRight((children, name) => [element(name, children)], inline(inner, depth + 1))[0]],
  };
}

// [text](address "title"); an image is its link, as nothing is loaded from elsewhere.
function bracketLink(s, i, depth) {
  const open = s[i] === "!" ? i + 1 : i;
  if (s[open] !== "[") return null;
  const end = Math.min(s.length, open + MAX_AHEAD);
  let level = 0, close = open;
  for (; close < end && ahead-- > 0; close++) {
    if (s[close] === "\\") close++;
    else if (s[close] === "[") level++;
    else if (s[close] === "]" && --level === 0) break;
  }
  if (s[close] !== "]" || level !== 0 || s[close + 1] !== "(") return null;
  const paren = s.slice(close + 2, close + 2 + MAX_ADDRESS).match(/^\s*<?((?:[^\s()<>]|\([^\s()<>]*\))+)>?(?:\s+"[^"]*")?\s*\)/);
  const address = paren && safeAddress(paren[1]);
  if (!address) return null;
  const text = s.slice(open + 1, close) || address;
  return { end: close + 2 + paren[0].length, nodes: () => [link(address, inline(text, depth + 1, true))] };
}

// https://... in the text, or in angle brackets.
function bareLink(s, i) {
  const bracket = s[i] === "<";
  const found = s.slice(i + bracket, i + bracket + MAX_ADDRESS).match(/^https?:\/\/[^\s<>"`]+/i);
  if (!found || isWord(s[i - 1]) || (bracket && s[i + 1 + found[0].length] !== ">")) return null;
  let text = found[0];
  while (!bracket && /[.,;:!?'*_~\])]$/.test(text)) {
    if (text.endsWith(")") && text.split("(").length >= text.split(")").length) break;
    text = text.slice(0, -1);
  }
  const address = safeAddress(text);
  return address && { end: i + text.length + 2 * bracket, nodes: () => [link(address, [text])] };
}

function lineBreak(s, i) {
  return { end: i + 1, nodes: () => [element("br")] };
}

function escaped(s, i) {
  return /[!-/:-@[-`{-~]/.test(s[i + 1] ?? "") ? { end: i + 2, nodes: () => [s[i + 1]] } : null;
}

// What a character may begin.
const INLINE = {
  "\\": escaped, "`": codeSpan, "*": emphasis, "_": emphasis, "~": emphasis, "[": bracketLink, "!": bracketLink,
  "<": bareLink, h: bareLink, H: bareLink, "\n": lineBreak,
};
const LINKS = new Set([bracketLink, bareLink]);

// The nodes and strings of a text. Links have no links inside.
function inline(s, depth, inLink = false) {
  if (depth > MAX_DEPTH) return [s];
  const out = [];
  let plain = 0;
  for (let i = 0; i < s.length; ) {
    const rule = INLINE[s[i]];
    const found = rule && !(inLink && LINKS.has(rule)) ? rule(s, i, depth) : null;
    if (!found) {
      i += rule && "`*_~".includes(s[i]) ? runLength(s, i) : 1;
      continue;
    }
    if (i > plain) out.push(s.slice(plain, i));
    out.push(...found.nodes());
    plain = i = found.end;
  }
  if (plain < s.length) out.push(s.slice(plain));
  return out;
}

// The same of a whole text.
function inlineText(s, depth) {
  ahead = 40 * s.length + 10 * MAX_AHEAD;
  return inline(s, depth);
}

// ---- blocks ----

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}|$)/;
const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/);
  return cells.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function isTable(lines, i) {
  const next = lines[i + 1];
  if (!lines[i].includes("|") || next === undefined || !next.includes("-")) return false;
  const cells = cellsOf(next);
  return cells.every((cell) => /^:?-+:?$/.test(cell)) && cells.length === cellsOf(lines[i]).length;
}

const beginsBlock = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(line));

// Each of these takes the lines from i on that are its block, and says where it ends.
function fenceEnd(lines, i) {
  const mark = lines[i].match(FENCE)[1];
  let j = i + 1;
  while (j < lines.length) {
    const line = lines[j++].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) break;
  }
  return j;
}

function quoteEnd(lines, i) {
  while (i < lines.length && QUOTE.test(lines[i])) i++;
  return i;
}

// Where the item at i ends: at another item of its level, or at a line that does not go on with it.
function itemEnd(lines, i) {
  let j = i + 1;
  for (; j < lines.length; j++) {
    const line = lines[j], blankBefore = isBlank(lines[j - 1]);
    if (isBlank(line) || indentOf(line) >= 2) continue;
    if (blankBefore || beginsBlock(line)) break;
  }
  while (j > i + 1 && isBlank(lines[j - 1])) j--;
  return j;
}

const listKind = (line) => (/\d/.test(line.match(ITEM)[2]) ? "ol" : "ul");

function listEnd(lines, i) {
  const kind = listKind(lines[i]);
  let end = i;
  for (let j = i; j < lines.length && ITEM.test(lines[j]) && !RULE.test(lines[j]) && listKind(lines[j]) === kind; ) {
    end = j = itemEnd(lines, j);
    while (j < lines.length && isBlank(lines[j])) j++;
  }
  return end;
}

function tableEnd(lines, i) {
  i += 2;
  while (i < lines.length && !isBlank(lines[i]) && lines[i].includes("|")) i++;
  return i;
}

function paragraphEnd(lines, i) {
  i++;
  while (i < lines.length && !isBlank(lines[i]) && !beginsBlock(lines[i]) && !isTable(lines, i)) i++;
  return i;
}

function fence(lines) {
  const [, mark, info] = lines[0].match(FENCE), indent = indentOf(lines[0]);
  const last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
  const text = lines.slice(1, closed ? -1 : undefined).map((line) => line.slice(Math.min(indent, indentOf(line))));
  const code = element("code", [text.join("\n")]);
  const copy = element("button", ["Copy"], { type: "button", "aria-label": "Copy this code" });
  copy.addEventListener("click", () => copyText(code.textContent, copy));
  return element("figure", [element("figcaption", [info.trim().split(/\s/)[0] || "code", copy]), element("pre", [code])],
    { class: "code" });
}

function heading(lines, depth) {
  const level = lines[0].match(HEADING)[1].length;
  let text = lines[0].trim().slice(level).trim();
  while (text.endsWith("#")) text = text.slice(0, -1);
  return element(`h${Math.min(level + 2, 6)}`, inlineText(text.trim(), depth)); // below the page's own two
}

function quote(lines, depth) {
  return element("blockquote", nodesOf(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
}

function list(lines, depth) {
  const kind = listKind(lines[0]), items = [];
  for (let i = 0, end; i < lines.length; i = end) {
    const [all, , mark] = lines[i].match(ITEM);
    end = itemEnd(lines, i);
    const own = [lines[i].slice(all.length)];
    for (const line of lines.slice(i + 1, end)) own.push(line.slice(Math.min(all.length, indentOf(line))));
    const children = nodesOf(own, depth + 1);
    // A lone paragraph, before a nested list or not, is the item's text itself.
    const loose = own.some(isBlank);
    const flat = children.flatMap((node) => (!loose && node.tagName === "P" ? [...node.childNodes] : [node]));
    const attributes = kind === "ol" && items.length === 0 && parseInt(mark) !== 1 ? { value: parseInt(mark) } : {};
    items.push(element("li", flat, attributes));
    while (end < lines.length && isBlank(lines[end])) end++;
  }
  return element(kind, items);
}

function table(lines, depth) {
  const sides = cellsOf(lines[1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
  const row = (line, name) => {
    const cells = cellsOf(line);
    const make = (side, k) => element(name, inlineText(cells[k] ?? "", depth), side ? { class: side } : {});
    return element("tr", sides.map(make));
  };
  const body = lines.slice(2).map((line) => row(line, "td"));
  const made = element("table", [element("thead", [row(lines[0], "th")]), element("tbody", body)]);
  return element("div", [made], { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" });
}

const paragraph = (lines, depth) => element("p", inlineText(lines.map((line) => line.trim()).join("\n"), depth));

const oneLine = (lines, i) => i + 1;

// The first rule that fits a line makes the block.
const BLOCKS = [
  { fits: (lines, i) => FENCE.test(lines[i]), end: fenceEnd, make: fence },
  { fits: (lines, i) => HEADING.test(lines[i]), end: oneLine, make: heading },
  { fits: (lines, i) => RULE.test(lines[i]), end: oneLine, make: () => element("hr") },
  { fits: (lines, i) => QUOTE.test(lines[i]), end: quoteEnd, make: quote },
  { fits: (lines, i) => ITEM.test(lines[i]), end: listEnd, make: list },
  { fits: isTable, end: tableEnd, make: table },
  { fits: () => true, end: paragraphEnd, make: paragraph },
];

// The blocks of some lines, each with its rule and its own lines.
function blocksOf(lines) {
  const out = [];
  for (let i = 0; i < lines.length; ) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const rule = BLOCKS.find((one) => one.fits(lines, i));
    const end = rule.end(lines, i);
    out.push({ rule, lines: lines.slice(i, end) });
    i = end;
  }
  return out;
}

function nodesOf(lines, depth) {
  if (depth > MAX_DEPTH) return [element("p", [lines.join("\n")])];
  return blocksOf(lines).map((block) => block.rule.make(block.lines, depth));
}

// Shows `text` in `parent`. Called again with a longer text it makes anew only the blocks that have changed, which
// while an answer comes in is the last one.
export function showMarkdown(parent, text) {
  const blocks = blocksOf(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"));
  const shown = (parent.shownBlocks ??= []);
  let same = 0;
  while (same < shown.length && same < blocks.length && shown[same].source === blocks[same].lines.join("\n")) same++;
  for (const old of shown.splice(same)) old.node.remove();
  for (const block of blocks.slice(same)) {
    const node = block.rule.make(block.lines, 0);
    shown.push({ source: block.lines.join("\n"), node });
    parent.append(node);
  }
}

// What browsers leave to pages that came over plain http from another machine.
function copySelection(text) {
  const field = element("textarea", [], { "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

// Puts text on the clipboard and says on the button whether it is there.
export async function copyText(text, button) {
  const before = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copySelection(text);
    button.focus();
  }
  button.textContent = done ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = before), 1500);
}
