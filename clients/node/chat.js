#!/usr/bin/env node
/** A chat with an agent: `node chat.js --help`. The agent's text goes to stdout, everything else to stderr. */
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';

import { Bedrock, BedrockError } from './bedrock.js';

const USAGE = `usage: node chat.js [options] [message]
  -r, --resume NAME      go on in this conversation, by its id or slug
  -C, --directory DIR    where a new conversation works (default: here)
  --ask POLICY           which tool calls need approval: auto (default), ask_writes or ask_all
  --yes                  answer every question with yes
  --json                 print every event as a JSON line
Without a message, each line that is typed is one. While the agent works, a line is a steer, and Ctrl-C cancels.
Exit codes: 0 well, 1 Bedrock refused, 2 usage, 3 a question is open and standard input has ended, 130 Ctrl-C,
141 standard output was closed by its reader, which cancels the run.`;

const { values: options, positionals } = commandLine();
let conversation;
let talking = null; // what goes on until the run has ended
let question = null; // the approval that waits for an answer
let inputEnded = false;

const note = (text) => process.stderr.write(`[${text}]\n`);

function commandLine() {
  const known = {
    resume: { type: 'string', short: 'r' },
    directory: { type: 'string', short: 'C', default: process.cwd() },
    ask: { type: 'string', default: 'auto' },
    yes: { type: 'boolean' },
    json: { type: 'boolean' },
    help: { type: 'boolean', short: 'h' },
  };
  try {
    const given = parseArgs({ allowPositionals: true, options: known });
    const policies = ['auto', 'ask_writes', 'ask_all'];
    if (policies.includes(given.values.ask)) return given;
    throw new Error(`--ask ${given.values.ask}: choose one of ${policies.join(', ')}`);
  } catch (error) {
    console.error(`${error.message}\n${USAGE}`);
    return process.exit(2);
  }
}

/** Send a message and show its run until it ends. */
async function talk(text) {
  const run = await conversation.send(text, { waitForOthers: true }); // the person at the terminal
  for await (const event of run) {
    if (options.json) console.log(JSON.stringify(event));
    else if (event.textDelta && !event.textDelta.reasoning) process.stdout.write(event.textDelta.text);
    else if (event.messageAdded?.role === 'ROLE_AGENT') process.stdout.write('\n');
    if (event.streamDiscarded) note('the text of this attempt is discarded');
    for (const block of event.messageAdded?.content ?? []) showTool(block);
    if (event.approvalChanged) await ask(event.approvalChanged);
  }
  const { reason, detail, error } = run.stop ?? {};
  const stopped = detail ? `stopped: ${detail}` : 'stopped';
  note(error?.message ?? (reason === 'STOP_REASON_COMPLETED' ? 'done' : stopped));
}

function showTool({ toolCall, toolResult }) {
  if (toolCall) process.stderr.write(`● ${describe(toolCall)}\n`);
  if (toolResult) process.stderr.write(`${toolResult.output}\n`);
}

/** A tool call in one line. */
function describe({ tool, input, rawInput }) {
  const values = Object.values(input?.fields ?? {}).map((value) => value[value.kind]);
  return [tool, rawInput, ...values].filter(Boolean).join(' ');
}

/** MODE_WORKSPACE as people write it. */
function modeName(mode) {
  return mode.replace('MODE_', '').toLowerCase();
}

/** Ask the person; resolves when there is a decision. */
async function ask({ approval, decision }) {
  question = decision === 'APPROVAL_DECISION_UNSPECIFIED' ? approval : null;
  if (!question) return;
  const { toolCall, modeUpgrade } = approval;
  process.stderr.write(`? ${toolCall ? describe(toolCall) : `${modeName(modeUpgrade.mode)} mode: ${modeUpgrade.reason}`} [y/n]\n`);
  if (options.yes) await answer('y');
  else if (inputEnded) giveUp();
}

/** No one can answer here; the question stays open for other clients. */
function giveUp() {
  note(`standard input has ended, so you cannot answer: use --yes, or --resume ${conversation.name} in a terminal`);
  process.exit(3);
}

/** Answer the open question. Another client may have been faster. */
async function answer(line) {
  const asked = question;
  question = null;
  try {
    await conversation.resolve(asked, /^y/i.test(line) ? 'APPROVE' : 'DENY');
  } catch (error) {
    if (!['UNKNOWN_OR_DECIDED', 'NOT_AWAITING_APPROVAL'].includes(error.reason)) throw error;
  }
}

/** Handle an input line. */
async function take(line) {
  if (question) return answer(line);
  if (talking) return conversation.send(line, { delivery: 'DELIVERY_STEER' });
  talking = report(talk(line));
  await talking;
  talking = question = null;
}

/** Stop the run. */
async function cancel() {
  const { unrecorded } = await conversation.cancel({ discardQueued: true });
  if (unrecorded) note('stopped, but not recorded yet: the server cannot store this now and will try again');
}

/** The reader of stdout is gone (`| head`): stop the run, and exit. */
async function leave(error) {
  if (error.code !== 'EPIPE') throw error;
  if (process.exitCode === 141) return; // every later write fails as well
  process.exitCode = 141;
  if (conversation) await report(cancel());
  process.exit(141);
}

/** Wait for a call, and report its refusal. */
async function report(work) {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof BedrockError)) throw error;
    note(`${error.reason || error.code}: ${error.message}`);
    process.exitCode = 1;
  }
}

async function main() {
  const bedrock = new Bedrock({ onDisconnect: (error) => note(`disconnected, resuming: ${error.message}`) });
  const { resume, directory: workingDirectory, ask: policy } = options;
  conversation = resume
    ? bedrock.conversation(`conversations/${resume.replace(/^conversations\//, '')}`)
    : await bedrock.create({ workingDirectory, approvalPolicy: `APPROVAL_POLICY_${policy.toUpperCase()}` });
  note(conversation.name);
  process.on('SIGINT', () => (talking ? report(cancel()) : process.exit(130)));
  const lines = createInterface({ input: process.stdin });
  lines.on('line', (line) => report(take(line)));
  lines.on('close', () => {
    inputEnded = true;
    if (question) giveUp();
  });
  if (positionals.length) await take(positionals.join(' '));
  else await once(lines, 'close');
  await talking;
  lines.close();
  bedrock.close();
}

process.stdout.on('error', leave);
if (options.help) console.log(USAGE);
else await report(main());
