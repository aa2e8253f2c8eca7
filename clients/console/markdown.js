// @ts-check
// Markdown by an allow-list: everything else stays text. No HTML, no images, only web and mail addresses.

import { h } from './dom.js';

/** @typedef {{kind: string, text: string, info?: string, level?: number, line?: number}} Block `line`: where it begins */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const DIVIDER = /^\|?:?-+:?(\|:?-+:?)*\|?$/; // of a line without its spaces: with them it would take cubic time
/** Beyond these limits, text is shown unformatted, so that a model's text cannot freeze the page. */
const MOST_BLOCKS = 5_000, MOST_ROWS = 1_000, MOST_COLUMNS = 100, DEEPEST = 12, LONGEST = 20_000;

/** @param {string} source @returns {Block[]} */
export function blocks(source) {
  /** @type {Block[]} */
  const found = [];
  const lines = source.replaceAll('\r\n', '\n').split('\n');
  let at = 0;
  while (at < lines.length && found.length < MOST_BLOCKS) {
    const line = lines[at], before = found.length, begin = at;
    const fence = FENCE.exec(line), heading = headingOf(line);
    if (!line.trim()) at += 1;
    else if (fence) at = fenced(lines, at, fence, found);
    else if (heading) {
      found.push(heading);
      at += 1;
    } else if (RULE.test(line)) {
      found.push({ kind: 'rule', text: '' });
      at += 1;
    } else if (line.includes('|') && DIVIDER.test((lines[at + 1] ?? '').replaceAll(/\s/g, ''))) at = taken('table', lines, at, found, (each) => each.includes('|'));
    else if (ITEM.test(line)) at = taken('list', lines, at, found, (each) => ITEM.test(each) || /^\s{2,}\S/.test(each));
    else if (/^ {0,3}>/.test(line)) at = taken('quote', lines, at, found, (each) => /^ {0,3}>/.test(each));
    else at = taken('text', lines, at, found, (each) => each.trim() !== '' && !FENCE.test(each) && !headingOf(each) && !ITEM.test(each));
    if (found.length > before) found[before].line = begin;
  }
  if (at < lines.length) found.push({ kind: 'code', text: lines.slice(at).join('\n'), line: at });
  return found;
}

/** @param {string} line @returns {Block | undefined} */
function headingOf(line) {
  const found = /^ {0,3}(#{1,6})\s(.*)$/s.exec(line), text = found?.[2].trim().replace(/(^|\s)#+$/, '').trim();
  return found && text ? { kind: 'heading', level: found[1].length, text } : undefined;
}

/** @param {string[]} lines @param {number} at @param {RegExpExecArray} fence @param {Block[]} found */
function fenced(lines, at, fence, found) {
  const end = lines.findIndex((each, index) => index > at && each.trim().startsWith(fence[1]) && !each.trim().slice(fence[1].length).trim());
  const last = end < 0 ? lines.length : end;
  found.push({ kind: 'code', info: fence[2], text: lines.slice(at + 1, last).join('\n') });
  return last + 1;
}

/** @param {string} kind @param {string[]} lines @param {number} at @param {Block[]} found @param {(line: string) => boolean} more */
function taken(kind, lines, at, found, more) {
  let end = at + 1;
  while (end < lines.length && more(lines[end])) end += 1;
  found.push({ kind, text: lines.slice(at, end).join('\n') });
  return end;
}

/** @param {Block} block @param {number} [depth] @returns {HTMLElement} */
function drawn(block, depth = 0) {
  switch (block.kind) {
    case 'code': return code(block.text, block.info);
    case 'heading': return h(`h${Math.min(6, (block.level ?? 1) + 2)}`, {}, inline(block.text));
    case 'rule': return h('hr');
    case 'quote': return h('blockquote', {}, depth < DEEPEST ? markdown(block.text.replaceAll(/^ {0,3}> ?/gm, ''), depth + 1) : inline(block.text));
    case 'list': return list(block.text.split('\n'), depth);
    case 'table': return table(block.text.split('\n'));
    default: return h('p', {}, inline(block.text));
  }
}

/** @param {string} text @param {string} [info] */
export const code = (text, info = '') => coded(text, info, h('pre', { tabindex: 0 }, h('code', {}, text)));

/** A text that can be copied, as it is shown. @param {string} text @param {string} info @param {HTMLElement} shown */
export function coded(text, info, shown) {
  const copy = h('button.copy', { type: 'button', 'aria-label': 'Copy', onclick: () => copied(copy, text) }, 'Copy');
  return h('div.code', {}, h('div.code-head', {}, h('span', {}, info || 'text'), copy), shown);
}

/** @param {HTMLElement} button @param {string} text */
export async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 1_500);
}

/** @param {string[]} lines @param {number} depth @returns {HTMLElement} */
function list(lines, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[0]));
  const indent = first[1].length, ordered = /\d/.test(first[2]);
  const made = h(ordered ? 'ol' : 'ul', ordered ? { start: Number.parseInt(first[2], 10) } : {});
  for (let at = 0; at < lines.length;) {
    const item = ITEM.exec(lines[at]);
    let end = at + 1;
    while (end < lines.length && (ITEM.exec(lines[end])?.[1].length ?? Infinity) > indent) end += 1;
    const rest = lines.slice(at + 1, end), text = item ? item[3] : lines[at].trim();
    const nested = rest.findIndex((each) => ITEM.test(each));
    const own = nested < 0 ? rest : rest.slice(0, nested), task = /^\[([ xX])\]\s+/.exec(text);
    made.append(h('li', {}, task && (task[1] === ' ' ? '☐ ' : '☑ '),
      inline([task ? text.slice(task[0].length) : text, ...own.map((each) => each.trim())].join('\n')),
      nested >= 0 && (depth < DEEPEST ? list(rest.slice(nested), depth + 1) : inline(rest.slice(nested).join('\n')))));
    at = end;
  }
  return made;
}

/** @param {string[]} lines */
function table(lines) {
  const cells = (/** @type {string} */ line) => {
    const all = line.trim().replace(/^\||\|$/g, '').split('|'), last = all.splice(MOST_COLUMNS - 1);
    return [...all, ...(last.length ? [last.join('|')] : [])].map((each) => inline(each.trim()));
  };
  const rows = lines.slice(2), left = rows.length - MOST_ROWS;
  return h('div.table', { tabindex: 0 }, h('table', {},
    h('thead', {}, h('tr', {}, cells(lines[0]).map((each) => h('th', { scope: 'col' }, each)))),
    h('tbody', {}, rows.slice(0, MOST_ROWS).map((line) => h('tr', {}, cells(line).map((each) => h('td', {}, each)))))),
    left > 0 && h('p', {}, `… ${left} more rows`));
}

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n](?:[\s\S]*?[^*\n])?)\*\*|~~([^~\n]+)~~|(?<![\w*])[*_]([^*_\s](?:[^*_\n]*[^*_\s])?)[*_](?![\w*])|!?\[([^\]\n]{0,500})\]\(([^)\s]{1,2000})\)|\bhttps?:\/\/[^\s<>()`'"]+[^\s<>()`'".,;:!?]|\\([\\`*_{}[\]()#+.!|~-])/g;

/** @param {string} text @param {number} [depth] @returns {(Node | string)[]} */
export function inline(text, depth = 0) {
  if (text.length > LONGEST) return [...inline(text.slice(0, LONGEST), depth), text.slice(LONGEST)];
  /** @type {(Node | string)[]} */
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(INLINE)) {
    parts.push(text.slice(at, found.index));
    at = found.index + found[0].length;
    const [whole, , verbatim, strong, struck, emphasis, label, target, escaped] = found;
    const inner = (/** @type {string} */ each) => (depth < 4 ? inline(each, depth + 1) : [each]);
    if (verbatim !== undefined) parts.push(h('code', {}, verbatim.trim()));
    else if (strong !== undefined) parts.push(h('strong', {}, inner(strong)));
    else if (struck !== undefined) parts.push(h('s', {}, inner(struck)));
    else if (emphasis !== undefined) parts.push(h('em', {}, inner(emphasis)));
    else if (target !== undefined) parts.push(link(target, label || target));
    else if (escaped !== undefined) parts.push(escaped);
    else parts.push(link(whole, whole));
  }
  parts.push(text.slice(at));
  return parts;
}

/** A link shows its target; links to anything but the web or mail stay text.
 * @param {string} target @param {string} label */
export function link(target, label) {
  if (!/^(https?:\/\/|mailto:)/i.test(target) || !URL.canParse(target)) return h('span', {}, label, label === target ? '' : ` (${target})`);
  const { host, protocol } = new URL(target);
  const where = protocol === 'mailto:' ? target.slice(7) : host, said = /^(?:https?:\/\/|mailto:)?([^/?#]*)/i.exec(label)?.[1];
  return h('a', { href: new URL(target).href, target: '_blank', rel: 'noopener noreferrer', title: target },
    label, said !== where && h('span.where', {}, ` (${where})`));
}

/** @param {string} source @param {number} [depth] */
export function markdown(source, depth = 0) {
  return h('div.markdown', {}, blocks(source).map((each) => drawn(each, depth)));
}

/** Markdown that grows at its end: only blocks that the last line can still change are parsed and drawn again. */
export class Growing {
  constructor() {
    this.element = h('div.markdown.growing');
    /** The unfinished blocks, as drawn. @type {string[]} */
    this.drawn = [];
    this.settled = this.length = 0;
  }

  /** @param {string} source begins with what was shown before */
  show(source) {
    if (source.length === this.length) return;
    this.length = source.length;
    const rest = source.slice(this.settled), found = blocks(rest), keys = found.map((each) => `${each.kind} ${each.info ?? ''} ${each.text}`);
    let same = 0;
    while (same < keys.length && keys[same] === this.drawn[same]) same += 1;
    for (let gone = this.drawn.length - same; gone > 0; gone -= 1) this.element.lastChild?.remove();
    for (const each of found.slice(same)) this.element.append(drawn(each));
    const open = found.slice(-2); // the last line can become one with the block before it, as the next row of a table
    this.settled += begins(rest, open[0]?.line ?? 0);
    this.drawn = keys.slice(-2);
  }
}

/** The offset at which a line begins. @param {string} text @param {number} line */
function begins(text, line) {
  let at = 0;
  for (; line > 0; line -= 1) at = text.indexOf('\n', at) + 1;
  return at;
}

/** A unified diff, by lines. @param {string} text */
export function diff(text) {
  const lines = text.replace(/\n$/, '').split('\n');
  return h('div.diff', { tabindex: 0, role: 'figure', 'aria-label': 'Changes' }, lines.slice(0, 2_000).map((line) => {
    const kind = /^(\+\+\+|---)/.test(line) ? 'file' : line[0] === '+' ? 'added' : line[0] === '-' ? 'removed' : line.startsWith('@@') ? 'hunk' : 'same';
    return h(`div.${kind}`, {}, line || ' ');
  }), lines.length > 2_000 && h('div.hunk', {}, `… ${lines.length - 2_000} more lines`));
}

