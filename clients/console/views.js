// @ts-check
// The views beside the chat, in the order of their tabs.

import { drawAgents } from './agents.js';
import { words } from './format.js';
import { drawLog } from './log.js';
import { drawMachine } from './machine.js';
import { drawTimeline } from './timeline.js';
import { drawUsage } from './usage.js';

/**
 * @typedef {(scope: import('./dom.js').Scope, into: HTMLElement, conversation: import('./model.js').Conversation, rest: string[], base: string) =>
 *   {update?: (what: Set<string>) => void, go?: (rest: string[]) => void}} Draw
 */

/** @type {Record<string, {title: string, about: string, draw: Draw}>} */
export const VIEWS = words({
  timeline: { title: 'Timeline', about: 'where the time went', draw: drawTimeline },
  machine: { title: 'Machine', about: 'the state machine', draw: drawMachine },
  log: { title: 'Log', about: 'each step', draw: drawLog },
  usage: { title: 'Cost', about: 'context and cost', draw: drawUsage },
  agents: { title: 'Agents', about: 'the sub-agents', draw: drawAgents },
});
