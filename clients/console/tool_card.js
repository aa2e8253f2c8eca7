// @ts-check
// A tool call in the conversation: its input, live output, outcome, and killed processes.

import { fill, h } from './dom.js';
import { callSummary, duration, seconds, toolName, words } from './format.js';
import { code, diff } from './markdown.js';

/** @type {Record<string, [string, string]>} */
const OUTCOMES = words({
  TOOL_OUTCOME_OK: ['done', 'done'], TOOL_OUTCOME_ERROR: ['failed', 'error'], TOOL_OUTCOME_CANCELLED: ['cancelled', 'cancel'],
  TOOL_OUTCOME_SKIPPED: ['not run', 'cancel'], TOOL_OUTCOME_DENIED: ['denied', 'error'], TOOL_OUTCOME_TIMED_OUT: ['timed out', 'error'],
});
const SHOWN_LINES = 400, LIVE_CHARACTERS = 16_000;

export class ToolCard {
  /** @param {any} call @param {import('./model.js').Conversation} conversation */
  constructor(call, conversation) {
    this.call = call;
    this.conversation = conversation;
    this.head = h('summary');
    this.body = h('div.tool-body');
    this.element = h('details.tool-card', { ontoggle: () => this.update(true) }, this.head, this.body);
    this.key = '';
    this.touched = false;
    this.update();
  }

  update(again = false) {
    const { call, conversation } = this, result = conversation.results.get(call.toolUseId);
    const live = conversation.outputs.get(call.toolUseId), reaped = conversation.reaped.get(call.toolUseId);
    const current = conversation.state.toolExecuting?.current?.toolUseId === call.toolUseId;
    const key = [result?.outcome, live?.output.points, reaped?.pids?.length, current, this.element.hasAttribute('open')].join('|');
    if (key === this.key && !again) return;
    this.key = key;
    const [word, tone] = result ? OUTCOMES[result.outcome] ?? ['done', 'done'] : current ? ['running', 'tool'] : ['waits', 'idle'];
    this.element.className = `tool-card ${tone}`;
    fill(this.head, h('span.dot', { 'aria-hidden': 'true' }), h('b', {}, toolName(call.tool)), h('code.summary', {}, callSummary(call)),
      h('span.outcome', {}, word, result?.duration ? ` · ${duration(seconds(result.duration))}` : '', reaped ? ` · ${killed(reaped)}` : ''));
    const display = result?.display ?? {};
    if (current && live && !this.touched) this.element.setAttribute('open', '');
    if (result && display.diff && !this.touched) this.element.setAttribute('open', '');
    if (result) this.touched = true;
    if (!this.element.hasAttribute('open')) return this.body.replaceChildren();
    fill(this.body, given(call), live && h('pre.output.live', { tabindex: 0 }, live.output.text.slice(-LIVE_CHARACTERS)),
      display.diff ? diff(display.diff) : result && output(result.output ?? ''),
      (result?.images ?? []).map((/** @type {any} */ each) => picture(each)),
      reaped?.leaked && h('p.warn', {}, 'Some of its processes may still be running; see the server log.'));
    if (live) {
      const shown = this.body.querySelector('.live');
      if (shown) shown.scrollTop = shown.scrollHeight;
    }
  }
}

/** @param {any} reaped a ToolTreeReaped */
export function killed(reaped) {
  const count = reaped.pids?.length ?? 0;
  return `${count} process${count === 1 ? '' : 'es'} ended in ${duration(seconds(reaped.duration))}`;
}

/** The input of a call. @param {any} call */
export function given(call) {
  const input = call.input;
  if (input === undefined) return call.rawInput ? code(call.rawInput, 'unreadable input') : null;
  const { cmd, ...rest } = input, others = Object.entries(rest).map(([name, value]) => `${name}: ${JSON.stringify(value)}`);
  if (typeof cmd === 'string' && others.length <= 3) return code(cmd, ['bash', ...others].join(' · '));
  if (Array.isArray(input.patches)) return h('div', {}, h('p.path', {}, input.path), diff(input.patches.map(patch).join('\n')));
  return code(JSON.stringify(input, null, 2), 'input');
}

/** The change of a `patch` call, as a diff. @param {any} each */
function patch(each) {
  const marked = (/** @type {string} */ sign, /** @type {unknown} */ text) =>
    (typeof text === 'string' && text ? text.replace(/\n$/, '').split('\n').map((line) => sign + line) : []);
  return [`@@ ${each.operation} @@`, ...marked('-', each.oldText), ...marked('+', each.newText), ...(each.fromClipboard ? [`+(clipboard ${each.fromClipboard})`] : [])].join('\n');
}

/** @param {string} text */
function output(text) {
  const lines = text.split('\n');
  if (lines.length <= SHOWN_LINES) return h('pre.output', { tabindex: 0 }, text || '(no output)');
  const more = h('button', { type: 'button', onclick: () => more.parentElement?.replaceWith(h('pre.output', { tabindex: 0 }, text)) }, `Show all ${lines.length} lines`);
  return h('div', {}, h('pre.output', { tabindex: 0 }, lines.slice(-SHOWN_LINES).join('\n')), more);
}

/** An image of the conversation, stored on the server. @param {any} image */
export function picture(image) {
  if (!image.attachment) return h('span.badge', {}, `image ${image.mediaType ?? ''}`);
  const source = `/v1/${image.attachment.split('/').map(encodeURIComponent).join('/')}:download`;
  return h('a.picture', { href: source, target: '_blank', rel: 'noopener noreferrer' },
    h('img', { src: source, loading: 'lazy', alt: `Image, ${image.width ?? '?'} × ${image.height ?? '?'}`, width: Math.min(image.width || 320, 320) }));
}
