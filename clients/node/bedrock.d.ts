/**
 * The types of bedrock.js. Messages are those of protos/bedrock/v1, with fields in camelCase, enums as the names of their
 * values, and int64 as numbers; they are checked when they are sent.
 */

/** A message of the contract, as it is sent or was received. */
export type Message = Record<string, any>;

/** How a model is to answer; what is not given is left to the model. */
export interface Generation {
  /** How much to think before an answer. */
  reasoningEffort?: 'none' | 'low' | 'medium' | 'high' | 'max';
  /** How freely to choose words, from 0 to 2. */
  temperature?: number;
  /** Tokens of one answer at most, with its reasoning. */
  maxOutputTokens?: number;
}

/** What a conversation is made of: the fields of Conversation, some of them in short. */
export interface NewConversation extends Message {
  workingDirectory: string;
  /** What to tell the agent beside the server's prompt or, with `replace`, instead of it. */
  instructions?: string | { text: string; replace?: boolean };
  /** The server's tools that it is offered, as 'bash' or 'tools/bash'; [] for none. */
  tools?: string[] | { tools: string[] };
  generation?: Generation;
  /** Whether the server creates the successor as soon as the context is used up. */
  autoContinue?: boolean;
  /** Whether `clientTools` may hold tools that the mode does not offer to the agent. */
  allowUnoffered?: boolean;
  /** That of an earlier call: then the conversation that it made. */
  requestId?: string;
}

/** What decides about a question: 'APPROVE', 'DENY', or a function of the approval. */
export type OnApproval = 'APPROVE' | 'DENY' | ((approval: Message) => boolean | Promise<boolean>);

/** What is filled into the form of a tool's question, `{}` for an address that was visited, or null to decline. */
export type OnQuestion = (question: Message) => Message | null | Promise<Message | null>;

/** Of a message: more fields of SendMessageRequest, some of them in short. */
export interface SendOptions extends Message {
  onApproval?: OnApproval;
  onQuestion?: OnQuestion;
  /** Whether questions are left to other clients. */
  waitForOthers?: boolean;
  /** A JSON Schema: the run ends with a value that fits it, its `output`. */
  outputSchema?: object;
  /** Of this run alone, before what the conversation says. */
  generation?: Generation;
}

/** A tool that a function of the program answers. */
export interface ToolDeclaration {
  name: string;
  description?: string;
  /** A JSON Schema of type object. */
  inputSchema?: object;
  /** Milliseconds that a call waits for its answer. */
  timeout?: number;
  group?: string;
  /** Whether it is offered in restricted mode, too. */
  readOnly?: boolean;
  requiresApproval?: boolean;
  /** Whether it may be declared although the mode does not offer it to the agent. */
  allowUnoffered?: boolean;
}

/** What a tool's function returns if the result has images. */
export class ToolAnswer {
  constructor(value?: unknown, images?: { mediaType: string; data: Uint8Array }[]);
}

export interface Options {
  address?: string;
  token?: string;
  caFile?: string;
  /** The client's own certificate and the key of that, for a server that asks for one. */
  certificateFile?: string;
  keyFile?: string;
  /** Milliseconds for a call. */
  timeout?: number;
  /** Milliseconds until a stream that stays broken is given up. */
  reconnectFor?: number;
  onDisconnect?: (error: BedrockError, milliseconds: number) => void;
}

/** A connection to a server. */
export class Bedrock {
  constructor(options?: Options);
  timeout: number;
  reconnectFor: number;
  onDisconnect: (error: BedrockError, milliseconds: number) => void;
  close(): void;
  create(fields: NewConversation): Promise<Conversation>;
  conversation(name: string): Conversation;
  conversations(fields?: Message): AsyncGenerator<Message>;
  watchConversations(fields?: Message): AsyncGenerator<Message>;
  approvals(): AsyncGenerator<Message>;
  questions(): AsyncGenerator<Message>;
  models(): AsyncGenerator<Message>;
  model(name: string): Promise<Message>;
  /** Quotas that are set: `principal` (empty: all together), `quota`, `limit`, `used` and `resetTime`. */
  quotas(): Promise<Message[]>;
  /** Nodes: `incarnation`, `name`, `address`, `version`, `draining`, `activeConversations`, `answering` and
   * `workspaces`. */
  nodes(): AsyncGenerator<Message>;
  call(method: string, request: Message, timeout?: number): Promise<Message>;
  insist(method: string, request: Message, timeout?: number): Promise<Message>;
  all(method: string, list: string, fields?: Message): AsyncGenerator<Message>;
  stream(method: string, request: Message): AsyncIterable<Message> & { cancel(): void };
}

/** One conversation. */
export interface Conversation {
  readonly client: Bedrock;
  readonly name: string;
  readonly tools: unknown;
  tool(declaration: ToolDeclaration, answer: (input: any) => unknown): this;
  serveTools(): Promise<void>;
  send(text: string, options?: SendOptions): Promise<Run>;
  resolve(approval: { name: string }, decision: 'APPROVE' | 'DENY', note?: string, rule?: Message): Promise<Message>;
  answerQuestion(question: { name: string }, content?: Record<string, unknown>): Promise<Message>;
  declineQuestion(question: { name: string }): Promise<Message>;
  approvalRules(): AsyncGenerator<Message>;
  createApprovalRule(approvalRule: Message): Promise<Message>;
  deleteApprovalRule(rule: { name: string }): Promise<Message>;
  cancel(fields?: Message): Promise<Message>;
  get(): Promise<Message>;
  update(fields: Message & { etag?: string; generation?: Generation; autoContinue?: boolean; allowUnoffered?: boolean }): Promise<Message>;
  delete(fields?: Message): Promise<Message>;
  messages(): AsyncGenerator<Message>;
  cycle(name: string, fields?: Message): Promise<Message>;
  waitForCycle(name: string, fields?: Message & { timeout?: number }): Promise<Message>;
  events(afterRevision?: number): AsyncGenerator<Message>;
}

/** The run that one message starts or steers: its events, to the end. */
export interface Run extends AsyncIterable<Message> {
  readonly conversation: Conversation;
  /** `conversations/{conversation}/requestCycles/{run}`; empty while a follow-up waits. */
  readonly name: string;
  readonly message: Message;
  /** DISPOSITION_DIRECT, DISPOSITION_STEER_QUEUED and so on. */
  readonly disposition: string;
  readonly revision: number;
  /** How it ended; null before. With STOP_REASON_COMPLETED, its `detail` says why an answer is not whole. */
  readonly stop: Message | null;
  /** Whether the answer was cut off at its token limit. */
  readonly truncated: boolean;
  /** The value that fits the `outputSchema`; null before the end and without one. */
  readonly output: any;
}

/** What the server, or the way to it, answers instead of doing what was asked. Programs decide on `reason`. */
export class BedrockError extends Error {
  constructor(message: string, facts: Partial<Pick<BedrockError, 'code' | 'reason' | 'metadata' | 'fields' | 'retryAfter'>>);
  readonly code: string;
  readonly reason: string;
  readonly metadata: Record<string, string>;
  /** The fields of the request that are wrong, and what is wrong with each. */
  readonly fields: Record<string, string>;
  /** Seconds. */
  readonly retryAfter: number;
  /** Whether a stream that ended so may be opened again. */
  readonly passing: boolean;
  static from(error: unknown): Error;
}
