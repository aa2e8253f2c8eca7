// @ts-check
// A waterfall of the time that a run took.

import { fill, h } from './dom.js';
import { history, passed, slotWaits } from './events.js';
import { clock, duration, lastPart, mark, marks, words } from './format.js';
import { bind } from './keys.js';
import { divide, ended, runsOf, shares, unexplained } from './runs.js';

/** @type {Record<string, string>} */
export const KINDS = words({ slot: 'waiting for a slot', connect: 'time to first token', stream: 'answering', tool: 'tools', agents: 'sub-agents', ask: 'waiting for approval', backoff: 'waiting to retry', cancel: 'cancelling', kill: 'killing processes', leak: 'not confirmed dead' });
const REDRAW_MS = 200, REREAD_MS = 1_000, TICK_PX = 72;

/** @type {import('./views.js').Draw} */
export function drawTimeline(scope, into, conversation, rest, base) {
  const head = h('div.inspector-head'), body = h('div.inspector-body');
  fill(into, head, body);
  let chosen = rest[0] ?? '', zoom = 1, drawn = 0, cut = false;
  /** @type {import('./runs.js').Run[]} */
  let runs = [];
  /** How long attempts waited for a slot. @type {Map<string, number>} */
  const waits = new Map();
  /** The rows of expanded sub-agents. @type {Map<string, import('./runs.js').Row[]>} */
  const opened = new Map();
  const readChild = async (/** @type {string} */ name) => {
    const found = runsOf(await passed(name, 0).catch(() => [])).flatMap((each) => [...each.rows.values()]);
    if (scope.over || !opened.has(name)) return;
    opened.set(name, found.map((each) => ({ ...each, inner: true })));
    draw();
  };
  const toggle = (/** @type {string} */ name) => {
    if (opened.delete(name)) return draw();
    opened.set(name, []);
    readChild(name);
  };
  const at = () => { const found = runs.findIndex((each) => lastPart(each.name) === chosen); return found < 0 ? runs.length - 1 : found; };
  const step = (/** @type {number} */ by) => { const next = runs[at() + by]; if (next) location.hash = `${base}/timeline/${encodeURIComponent(lastPart(next.name))}`; };
  const scale = (/** @type {number} */ by) => { zoom = Math.max(1, Math.min(64, zoom * by)); draw(); };
  const read = async () => {
    const found = await history(conversation);
    if (scope.over) return;
    cut = found.cut;
    runs = runsOf(found.events);
    for (const run of runs) divide(run, waits);
    draw();
    readWaits();
  };
  /** How long attempts of the run waited for a slot: requested once, after a slow first answer. */
  const readWaits = async () => {
    const run = runs[at()], asked = run ? unexplained(run, waits) : [];
    if (!asked.length) return;
    for (const { attempt = '' } of asked) waits.set(attempt, 0);
    const found = await slotWaits(conversation.name, run.from).catch(() => new Map());
    for (const [attempt, waited] of found) waits.set(attempt, waited);
    if (!scope.over && asked.some(({ attempt = '' }) => waits.get(attempt))) read();
  };
  const room = () => body.clientWidth - 42 - Number.parseInt(getComputedStyle(body).getPropertyValue('--sides'), 10);
  const draw = () => {
    drawn = Date.now();
    const run = runs[at()];
    if (!run) return fill(body, h('div.blank', {}, h('h2', {}, 'No runs yet'), h('p', {}, 'Send a message: each request, tool, wait and cancel becomes a bar here, as it happens.')));
    const now = Date.now(), { text, tone } = ended(run), total = (run.to ?? now) - run.from;
    fill(head, h('button', { type: 'button', disabled: at() === 0, onclick: () => step(-1), title: 'Earlier run ([)' }, '←'), h('button', { type: 'button', disabled: at() === runs.length - 1, onclick: () => step(1), title: 'Later run (])' }, '→'),
      h('div.grow', {}, h('b', {}, run.text || 'Run'), h('p.small', {}, `run ${at() + 1} of ${runs.length}${cut ? ' still stored' : ''} · ${clock(new Date(run.from).toISOString())} · `, h(`span.state.${tone}`, {}, text))),
      h('span.big', {}, duration(total)), h('button', { type: 'button', 'aria-label': 'Zoom out', onclick: () => scale(1 / 2) }, '−'), h('button', { type: 'button', 'aria-label': 'Zoom in', onclick: () => scale(2) }, '+'));
    const kept = body.querySelector('.waterfall-scroll')?.scrollLeft ?? 0;
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.child : undefined;
    fill(body, split(run, now), waterfall(run, now, zoom, room(), opened, toggle));
    if (focused) /** @type {HTMLElement | null} */ (body.querySelector(`[data-child="${CSS.escape(focused)}"]`))?.focus();
    const scroller = body.querySelector('.waterfall-scroll');
    if (scroller) scroller.scrollLeft = kept;
  };
  bind(scope, 'Timeline', { '[': ['earlier run', () => step(-1)], ']': ['later run', () => step(1)], '+': ['zoom in', () => scale(2)], '-': ['zoom out', () => scale(1 / 2)] });
  read();
  let width = 0;
  const size = new ResizeObserver(() => { if (body.clientWidth !== width && runs.length) draw(); width = body.clientWidth; });
  size.observe(body);
  scope.add(() => size.disconnect());
  scope.every(REDRAW_MS, () => { const run = runs[at()]; if (run && !run.to && Date.now() - drawn >= REDRAW_MS && !body.matches(':active')) draw(); });
  scope.every(REREAD_MS, () => { if (!runs[at()]?.to) for (const name of opened.keys()) readChild(name); });
  return {
    update: (what) => { if (['all', 'state', 'messages', 'stops', 'results'].some((each) => what.has(each))) read(); },
    go: (to) => { chosen = to[0] ?? ''; draw(); readWaits(); },
  };
}

/** @param {import('./runs.js').Run} run @param {number} now */
function split(run, now) {
  const parts = Object.entries(shares(run, now)).sort(([, one], [, two]) => two - one), all = parts.reduce((sum, [, each]) => sum + each, 0) || 1;
  return h('section', { 'aria-label': 'Where the time went' }, h('div.split', {}, parts.map(([kind, each]) => h(`div.k-${kind}`, { style: { 'flex-grow': String(each / all) }, title: `${KINDS[kind]}: ${duration(each)}` }))),
    h('ul.legend', {}, parts.map(([kind, each]) => h('li', {}, h(`span.swatch.k-${kind}`), KINDS[kind], h('b', {}, duration(each))))));
}

/**
 * @param {import('./runs.js').Run} run @param {number} now @param {number} zoom @param {number} room the pixels of the time at zoom 1
 * @param {Map<string, import('./runs.js').Row[]>} opened @param {(child: string) => void} toggle
 */
function waterfall(run, now, zoom, room, opened, toggle) {
  /** @type {(row: import('./runs.js').Row) => import('./runs.js').Row[]} */
  const withInner = (row) => [row, ...(opened.get(row.child ?? '') ?? []).flatMap(withInner)];
  const rows = [...run.rows.values()].flatMap(withInner), ends = rows.flatMap((each) => each.spans.map((span) => span.to ?? now));
  const from = run.from, to = Math.max(run.to ?? now, ...ends), long = Math.max(1, to - from);
  const place = (/** @type {number} */ time) => `${(100 * (time - from)) / long}%`;
  const ticks = marks(long, Math.min(400, Math.max(1, Math.floor(room / TICK_PX)) * zoom)).filter((each) => each * (room * zoom) / long <= room * zoom - TICK_PX / 2), step = ticks[1] ?? long;
  return h('div.waterfall-scroll', { tabindex: 0, role: 'group', 'aria-label': 'Waterfall' }, h('div.waterfall', { style: { width: zoom === 1 ? '100%' : `calc(var(--sides) + (100% - var(--sides)) * ${zoom})` } },
    h('div.axis', {}, ticks.map((each) => h('span', { style: { left: place(from + each) } }, mark(each, step)))),
    rows.map((row) => {
      const kill = row.spans.find((each) => each.kind === 'kill' || each.kind === 'leak');
      return h(`div.fall-row${row.inner ? '.inner' : ''}${kill ? '.noted' : ''}`, {},
        h('div.fall-label', { title: row.about }, opener(row, opened, toggle), h('span', {}, row.about)),
        h('div.track', {}, row.spans.map((span) => {
          const end = span.to ?? now, text = `${span.title} · ${duration(end - span.from)}`;
          return h(`div.span.k-${span.kind}${span.to === null ? '.open' : ''}`, { style: { left: `min(${place(span.from)}, 100% - 3px)`, width: `max(3px, ${(100 * (end - span.from)) / long}%)` }, title: text, role: 'img', 'aria-label': `${row.label}: ${text}` });
        }), kill && h('span.receipt', { style: beside((kill.from - from) / long) }, kill.title)),
        h('span.took', {}, row.spans.length > 0 && duration(row.spans.filter((each) => each !== kill).reduce((all, each) => all + (each.to ?? now) - each.from, 0))));
    }),
    run.marks.map((each) => h('div.fall-row.marked', {}, h('div.fall-label'), h('div.track', {}, h('span.mark', { style: beside((each.at - from) / long), title: each.text }, each.text)), h('span.took'))),
    h('div.lines', { 'aria-hidden': 'true' }, run.marks.map((each) => h('div', { style: { left: place(each.at) } })))));
}

/** A text in a line of its own that begins or ends at a share of the width, where there is more room. @param {number} share @returns {Record<string, string>} */
const beside = (share) => (share < 0.5 ? { left: `${100 * share}%`, 'max-width': `${100 - 100 * share}%` } : { right: `${100 - 100 * share}%`, 'max-width': `${100 * share}%` });

/** A row's name; that of a sub-agent opens its rows beneath it, and leads to its own timeline.
 * @param {import('./runs.js').Row} row @param {Map<string, any>} opened @param {(child: string) => void} toggle */
function opener(row, opened, toggle) {
  const { child, label } = row;
  if (!child) return h('b', {}, label);
  const open = opened.has(child);
  return [h('button.plain', { type: 'button', 'aria-expanded': String(open), 'aria-label': `Rows of ${label}`, 'data-child': child, onclick: () => toggle(child) }, open ? '▾' : '▸'),
    h('a', { href: `#/c/${lastPart(child)}/timeline` }, label)];
}
