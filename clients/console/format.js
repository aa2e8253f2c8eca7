// @ts-check
// Formats times, sizes and the contract's terms for people.

/** A table without a prototype, because a model can use any name, including `__proto__`. @template T @param {Record<string, T>} entries @returns {Record<string, T>} */
export const words = (entries) => Object.assign(Object.create(null), entries);

/** @param {string | undefined} time */
export const ms = (time) => (time ? Date.parse(time) : NaN);

/** @param {string | undefined} text a duration of protobuf's JSON, such as `1.5s` */
export const seconds = (text) => (text ? Number.parseFloat(text) * 1000 : 0);

/** @param {number} value milliseconds */
export function duration(value) {
  if (!Number.isFinite(value)) return '–';
  if (value < 1) return '<1 ms';
  if (value < 1000) return `${Math.round(value)} ms`;
  if (value < 60_000) return `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;
  const whole = Math.floor(value / 1000);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Round marks of an axis: 0 and the multiples of 1, 2 or 5 times a power of ten up to `end`, not more than `most` steps. @param {number} end @param {number} most @returns {number[]} */
export function marks(end, most) {
  const least = end / Math.max(1, most), ten = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= least) ?? ten;
  return Array.from({ length: Math.floor(end / step + 1e-6) + 1 }, (_, index) => index * step);
}

/** A mark of an axis of time. @param {number} value milliseconds @param {number} step between two marks */
export function mark(value, step) {
  if (!value || step >= 60_000) return value ? duration(value) : '0';
  if (step < 1000 && value < 1000) return `${Number(value.toFixed(1))} ms`;
  return `${(value / 1000).toFixed(Math.max(0, -Math.floor(Math.log10(step / 1000) + 1e-6)))} s`;
}

/** @param {string | undefined} time */
export function ago(time, now = Date.now()) {
  const past = now - ms(time);
  if (!Number.isFinite(past)) return '';
  if (past < 45_000) return 'now';
  if (past < 3_600_000) return `${Math.max(1, Math.round(past / 60_000))} min`;
  if (past < 86_400_000) return `${Math.round(past / 3_600_000)} h`;
  if (past < 7 * 86_400_000) return `${Math.round(past / 86_400_000)} d`;
  return new Date(ms(time)).toLocaleDateString();
}

/** The time of day, to the second; to the minute with the date if it is not today's. @param {string | undefined} time */
export function clock(time, today = new Date().toDateString()) {
  if (!time) return '';
  const at = new Date(time), day = { hour: /** @type {const} */ ('2-digit'), minute: /** @type {const} */ ('2-digit') };
  return at.toDateString() === today ? at.toLocaleTimeString([], { ...day, second: '2-digit' }) : at.toLocaleString([], { month: 'short', day: 'numeric', ...day });
}

/** @param {string | undefined} time */
export const exactly = (time) => (time ? new Date(time).toLocaleString() : '');

/** @param {string | number | undefined} count */
export function tokens(count) {
  const value = Number(count ?? 0);
  if (value < 1000) return String(value);
  if (value < 100_000) return `${Number((value / 1000).toFixed(1))}k`;
  if (value < 1_000_000) return `${Math.round(value / 1000)}k`;
  return `${Number((value / 1_000_000).toFixed(1))}M`;
}

/** @param {string | number | undefined} micros */
export function money(micros) {
  const value = Number(micros ?? 0) / 1_000_000;
  return value === 0 ? '$0' : value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

/** The last part of an enum's name: `STATE_KIND_IDLE`, `STATE_KIND` → `idle`.
 * @param {string | undefined} value @param {string} prefix */
export const word = (value, prefix) => (value ?? '').replace(`${prefix}_`, '').toLowerCase().replaceAll('_', ' ');

/** @param {string | undefined} name the name of a resource @returns {string} */
export const lastPart = (name) => (name ?? '').split('/').pop() ?? '';

/** @param {string | undefined} text @param {number} most */
export function short(text, most = 80) {
  const line = (text ?? '').trim().split('\n', 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** What each state is called, as in the terminal (clients/bedrock/cli/display/labels.py), and its colour class in all views. @type {Record<string, [string, string]>} */
const STATES = words({
  STATE_KIND_IDLE: ['idle', 'idle'],
  STATE_KIND_AWAITING_LLM: ['starting a request', 'model'],
  STATE_KIND_LLM_REQUESTING: ['thinking', 'model'],
  STATE_KIND_AWAITING_TOOL_APPROVAL: ['waiting for approval', 'ask'],
  STATE_KIND_TOOL_EXECUTING: ['running a tool', 'tool'],
  STATE_KIND_CANCELLING: ['cancelling', 'cancel'],
  STATE_KIND_AWAITING_SUB_AGENTS: ['waiting for sub-agents', 'agents'],
  STATE_KIND_AWAITING_CONTINUATION: ['summarizing', 'model'],
  STATE_KIND_CONTEXT_EXHAUSTED: ['context used up', 'cancel'],
  STATE_KIND_ERROR: ['error', 'error'],
  STATE_KIND_COMPLETED: ['completed', 'done'],
  STATE_KIND_FAILED: ['failed', 'error'],
});

/** @param {any} state a ConversationState @returns {{text: string, tone: string}} */
export function stateWords(state) {
  const [text, tone] = STATES[state?.kind] ?? ['unknown', 'idle'];
  const request = state?.llmRequesting, tool = state?.toolExecuting;
  if (request?.phase === 'PHASE_STREAMING') return { text: 'answering', tone: 'stream' };
  if (request?.phase === 'PHASE_BACKOFF')
    return { text: `next attempt ${request.attempt}/${request.maxAttempts}`, tone: 'cancel' };
  if (tool?.questions?.length) return { text: 'waiting for an answer', tone: 'ask' };
  if (tool?.deadline) return { text: 'waiting for a client', tone };
  if (tool?.current) return { text: `running ${toolName(tool.current.tool)}`, tone };
  if (state?.awaitingSubAgents?.pending)
    return { text: `waiting for ${state.awaitingSubAgents.pending.length} sub-agent${state.awaitingSubAgents.pending.length === 1 ? '' : 's'}`, tone };
  return { text, tone };
}

/** @param {string | undefined} name */
export const toolName = (name) => (name ?? '').replace(/^tools\//, '');

/** @type {Record<string, string>} */
const DETAILS = words({
  restart: 'interrupted by a server restart', not_run: 'discarded before it began',
  round_cap: 'stopped: the run has reached its limit of model requests', budget: 'stopped: the budget is spent',
  context_exhausted: 'stopped: the context is used up', cancel_timeout: 'cancelled; some sub-agents did not end in time',
  max_tokens: 'the answer was cut off at the token limit', refusal: 'the model refused', empty: 'the answer is empty',
});

/** How a run ended, in words. @param {any} stop a RunStopped or a RequestCycle */
export function stopWords(stop) {
  const detail = stop.detail ?? stop.stopDetail ?? '', reason = stop.reason ?? stop.stopReason;
  if (reason === 'STOP_REASON_ERROR') return { text: stop.error?.message || `failed: ${detail.replaceAll('_', ' ')}`, tone: 'error' };
  if (reason === 'STOP_REASON_INTERRUPTED') return { text: DETAILS[detail] ?? (detail || 'cancelled'), tone: 'cancel' };
  if (reason === 'STOP_REASON_COMPLETED') return { text: DETAILS[detail] ?? 'completed', tone: detail ? 'cancel' : 'done' };
  return { text: 'running', tone: 'model' };
}

/** A one-line summary of a tool call. @param {any} call a ToolCall */
export function callSummary(call) {
  const input = call?.input ?? {};
  for (const key of ['cmd', 'path', 'command', 'query', 'pattern', 'search_terms', 'task', 'url', 'reason', 'thoughts', 'peek', 'wait', 'kill']) {
    if (typeof input[key] === 'string') return short(input[key], 140);
    if (Array.isArray(input[key])) return short(input[key].join(', '), 140);
  }
  const text = Object.keys(input).length ? JSON.stringify(input) : call?.rawInput ?? '';
  return short(text, 140);
}

/** @param {Record<string, any>} settings */
export const slugOf = (settings) => settings.slug || lastPart(settings.name);

/** @param {string} id @param {unknown} value */
export function remember(id, value) {
  try {
    localStorage.setItem(`bedrock.${id}`, JSON.stringify(value));
  } catch { /* a browser that keeps nothing forgets */ }
}

/** @param {string} id @param {any} otherwise */
export function remembered(id, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`bedrock.${id}`) ?? 'null') ?? otherwise;
  } catch {
    return otherwise;
  }
}
