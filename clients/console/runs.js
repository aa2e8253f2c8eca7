// @ts-check
// Runs as rows of spans, from the durable events: each request, tool, question and sub-agent with its times.

import { callSummary, lastPart, ms, seconds, short, stateWords, stopWords, toolName } from './format.js';

/**
 * @typedef {{kind: string, from: number, to: number | null, title: string, attempt?: string}} Span `attempt`: of a request, until its first token
 * @typedef {{key: string, label: string, about: string, spans: Span[], child?: string, inner?: boolean}} Row `child`: the sub-agent that it opens to
 * @typedef {{name: string, text: string, from: number, to: number | null, stop: any, rows: Map<string, Row>, marks: {at: number, text: string}[], path: string[]}} Run
 */

/** @param {any[]} events @returns {Run[]} */
export function runsOf(events) {
  /** @type {Map<string, Run>} */
  const runs = new Map();
  /** @type {Run | undefined} */
  let run;
  /** The run that has ended just now. @type {Run | undefined} */
  let last;
  /** @type {Map<string, Span>} */
  let open = new Map();
  /** @type {Map<string, {run: Run, row: Row}>} */
  const tools = new Map();
  for (const event of events) {
    const at = ms(event.time);
    if (event.stateChanged) {
      const { state } = event.stateChanged;
      if (state.run) run = known(runs, state.run, at);
      if (!run) {
        last?.path.push(state.kind); // the state that it ended in
        last = undefined;
        continue;
      }
      run.path.push(state.kind);
      open = moved(run, state, at, open);
      const current = state.toolExecuting?.current;
      if (current) tools.set(current.toolUseId, { run, row: /** @type {Row} */ (run.rows.get(`tool ${current.toolUseId}`)) });
    } else if (event.messageAdded) {
      const message = event.messageAdded;
      if (!message.requestCycle || message.role !== 'ROLE_USER') continue;
      const of = known(runs, message.requestCycle, at), text = short((message.content ?? []).map((/** @type {any} */ each) => each.text ?? '').join(' '), 100);
      if (!of.text) of.text = text;
      else of.marks.push({ at, text: `steer: ${text}` });
    } else if (event.runStopped) {
      const of = known(runs, event.runStopped.requestCycle, at);
      of.to = at;
      of.stop = event.runStopped;
      for (const span of open.values()) span.to ??= at;
      open = new Map();
      last = of;
      run = undefined;
    } else if (event.toolTreeReaped) {
      const { toolUseId, pids = [], duration, leaked } = event.toolTreeReaped, found = tools.get(toolUseId);
      if (!found?.row) continue;
      const took = seconds(duration);
      found.row.spans.push({ kind: leaked ? 'leak' : 'kill', from: at - took, to: at, title: leaked ? 'some processes may still be running' : `${pids.length} process${pids.length === 1 ? '' : 'es'} ended in ${Math.max(1, Math.round(took))} ms` });
    } else if (event.retrying && run) run.marks.push({ at, text: `failed: ${event.retrying.error?.message ?? ''}` });
    else if (event.subAgentsChanged && run) {
      for (const report of event.subAgentsChanged.reports ?? []) {
        const span = open.get(`agent ${report.conversation}`);
        if (!span || span.to !== null) continue;
        span.to = at;
        span.title = stateWords({ kind: report.state }).text;
      }
    }
  }
  return [...runs.values()];
}

/** @param {Map<string, Run>} runs @param {string} name @param {number} at @returns {Run} */
function known(runs, name, at) {
  const found = runs.get(name) ?? { name, text: '', from: at, to: null, stop: undefined, rows: new Map(), marks: [], path: [] };
  runs.set(name, found);
  return found;
}

/**
 * Begin the spans of a state, and end those that it does not continue.
 * @param {Run} run @param {any} state @param {number} at @param {Map<string, Span>} open
 */
function moved(run, state, at, open) {
  /** @type {Map<string, Span>} */
  const now = new Map();
  for (const [key, row, kind, title] of wanted(run, state)) {
    const before = open.get(key);
    if (before && before.kind === kind && before.to === null) now.set(key, before);
    else {
      const span = { kind, from: at, to: null, title, ...(kind === 'connect' && { attempt: `${state.llmRequesting.llmRequestId} ${state.llmRequesting.attempt}` }) };
      row.spans.push(span);
      now.set(key, span);
    }
  }
  for (const [key, span] of open) if (now.get(key) !== span) span.to ??= at;
  return now;
}

/** @param {Run} run @param {any} state @returns {[string, Row, string, string][]} key, row, kind and title of each span */
function wanted(run, state) {
  const request = state.llmRequesting, tool = state.toolExecuting;
  if (request) {
    const key = `request ${request.llmRequestId}`, kind = { PHASE_STREAMING: 'stream', PHASE_BACKOFF: 'backoff' }[/** @type {'PHASE_STREAMING'} */ (request.phase)] ?? 'connect';
    const title = { stream: 'answering', backoff: `waiting before attempt ${request.attempt}`, connect: `attempt ${request.attempt}: time to first token` }[kind] ?? '';
    return [[key, row(run, key, 'model', lastPart(request.llmRequestId.replace(':', '/'))), kind, title]];
  }
  if (tool?.current) {
    const { toolUseId, tool: name } = tool.current, key = `tool ${toolUseId}`;
    return [[key, row(run, key, toolName(name), callSummary(tool.current)), tool.retryTime ? 'backoff' : 'tool', tool.retryTime ? 'waiting before another attempt' : `attempt ${tool.attempt}`]];
  }
  if (state.awaitingApproval) return [['ask', row(run, `ask ${run.path.length}`, 'approval', state.awaitingApproval.pending.map((/** @type {any} */ each) => toolName(each.toolCall?.tool) || 'mode').join(', ')), 'ask', 'waiting for approval']];
  if (state.awaitingSubAgents) return state.awaitingSubAgents.pending.map((/** @type {any} */ each) => {
    const key = `agent ${each.conversation}`;
    const made = row(run, key, `agent ${(each.taskIndex ?? 0) + 1}`, each.task);
    made.child = each.conversation;
    return [key, made, 'agents', 'working'];
  });
  if (state.kind === 'STATE_KIND_CANCELLING') return [['cancel', row(run, 'cancel', 'cancel', 'until everything has ended'), 'cancel', 'cancelling']];
  if (state.kind === 'STATE_KIND_AWAITING_CONTINUATION') return [['summary', row(run, 'summary', 'summary', 'of the conversation'), 'stream', 'summarizing']];
  return [];
}

/** @param {Run} run @param {string} key @param {string} label @param {string} about @returns {Row} */
function row(run, key, label, about) {
  const found = run.rows.get(key) ?? { key, label, about, spans: [] };
  run.rows.set(key, found);
  return found;
}

/** The time that a run spent on each kind of work. @param {Run} run @param {number} now @returns {Record<string, number>} */
export function shares(run, now) {
  /** @type {Record<string, number>} */
  const found = {};
  /** How far each kind is counted: what runs side by side counts once. @type {Record<string, number>} */
  const until = {};
  for (const { kind, from, to } of [...run.rows.values()].flatMap(({ spans }) => spans).sort((one, two) => one.from - two.from)) {
    if (kind === 'kill' || kind === 'leak') continue;
    const end = to ?? now;
    found[kind] = (found[kind] ?? 0) + Math.max(0, end - Math.max(from, until[kind] ?? from));
    until[kind] = Math.max(end, until[kind] ?? end);
  }
  return found;
}

const SHORT_MS = 50;

/** The times before a first token that may include a wait for a slot, unless known. @param {Run} run @param {Map<string, number>} waits */
export const unexplained = (run, waits) => [...run.rows.values()].flatMap(({ spans }) => spans.filter(({ attempt, from, to }) => attempt && to !== null && to - from > SHORT_MS && !waits.has(attempt)));

/** Show the wait for a slot as a separate span. @param {Run} run @param {Map<string, number>} waits */
export function divide(run, waits) {
  for (const { spans } of run.rows.values()) {
    for (const span of spans.filter((each) => each.attempt)) {
      const waited = Math.min(waits.get(span.attempt ?? '') ?? 0, (span.to ?? Infinity) - span.from);
      if (!waited) continue;
      spans.splice(spans.indexOf(span), 0, { kind: 'slot', from: span.from, to: span.from + waited, title: 'waiting for a free slot' });
      span.from += waited;
    }
  }
}

/** @param {Run} run */
export const ended = (run) => (run.stop ? stopWords(run.stop) : { text: 'running', tone: 'model' });
