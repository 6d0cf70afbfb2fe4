// The source of answers: a server, or the contents of a report. The rest of the page
// does not depend on which.

import type { Source } from "./answering";
import { Coded, coded } from "./coded";
import { Report } from "./report";
import type { Answers, BuildInfo, Diff, ErrorInfo, JobEvent, Options, Start } from "./wire";

/** The source of this page: the report's contents, else the server. */
export function source(): Source {
  const embedded = document.getElementById("clew-report");
  return embedded ? new Report(embedded.textContent ?? "") : new Server(base());
}

/** The folder of the page: `/TOKEN/`, also where the path goes on to a build's route. */
function base(): string {
  return `/${location.pathname.split("/")[1] ?? ""}/`;
}

class Server implements Source {
  readonly live = true;
  constructor(private readonly root: string) {}

  start(): Promise<Start> {
    return this.json("api/start");
  }

  get<K extends keyof Answers>(build: string, path: K | `${K}/${string}`): Promise<Answers[K]> {
    // What follows the route's name is one piece: a layer may be named `a/../b`, which URLs resolve.
    const [route = "", ...rest] = path.split("/");
    return this.json(`api/${build}/${[route, ...(rest.length ? [encodeURIComponent(rest.join("/"))] : [])].join("/")}`);
  }

  iterations(): Promise<null> {
    return Promise.resolve(null);
  }

  diff(a: string, b: string): Promise<Diff> {
    return this.json(`api/diff/${a}/${b}`);
  }

  async build(
    model: string | readonly File[],
    options: Options,
    onSent?: (share: number) => void,
    stop?: AbortSignal,
  ): Promise<BuildInfo> {
    if (typeof model === "string") return this.post("api/builds", { model, options });
    const query = new URLSearchParams({ name: model[0]?.name ?? "", options: JSON.stringify(options) });
    // Files of one model are sent one after another, with their sizes.
    if (model.length > 1) query.set("parts", JSON.stringify(model.map((file) => [file.name, file.size])));
    return upload(`${this.root}api/builds?${query}`, new Blob([...model]), onSent, stop);
  }

  async act(build: string, action: string, params: Record<string, unknown>): Promise<string> {
    const path = action === "diff" ? "api/diff" : `api/${build}/actions/${action}`;
    return (await this.post<{ job: string }>(path, params)).job;
  }

  follow<T>(job: string, onEvent: (event: JobEvent) => void): Promise<T> {
    const events = new EventSource(`${this.root}api/jobs/${job}/events`);
    return new Promise((resolve, reject) => {
      events.onmessage = (message: MessageEvent<string>) => {
        const event = JSON.parse(message.data) as JobEvent;
        onEvent(event);
        if (event.kind === "progress") return;
        events.close();
        if (event.kind === "done") this.json<T>(`api/jobs/${job}/result`).then(resolve, reject);
        else if (event.error) reject(new Coded(event.error));
        else reject(coded("W002", "cancelled"));
      };
      events.onerror = () => {
        // The browser reconnects by itself while the connection may come back.
        if (events.readyState === EventSource.CLOSED) reject(coded("W001", "the server is gone", "start it again"));
      };
    });
  }

  async cancel(job: string): Promise<void> {
    await fetch(`${this.root}api/jobs/${job}`, { method: "DELETE" });
  }

  private async json<T>(path: string): Promise<T> {
    return answer(await reach(fetch(this.root + path, { headers: { accept: "application/json" } })));
  }

  private async post<T>(path: string, body: unknown): Promise<T> {
    const headers = { "content-type": "application/json" };
    return answer(await reach(fetch(this.root + path, { method: "POST", headers, body: JSON.stringify(body) })));
  }
}

async function reach(pending: Promise<Response>): Promise<Response> {
  try {
    return await pending;
  } catch {
    throw coded("W001", "the server is gone", "start clew explore again");
  }
}

async function answer<T>(response: Response): Promise<T> {
  const text = await response.text();
  if (response.ok) return JSON.parse(text) as T;
  let info: ErrorInfo;
  try {
    info = JSON.parse(text) as ErrorInfo;
  } catch {
    throw coded("W001", `the server answered ${response.status}`);
  }
  throw new Coded(info);
}

/** Uploads files with progress, which fetch does not support. */
function upload(url: string, body: Blob, onSent?: (share: number) => void, stop?: AbortSignal): Promise<BuildInfo> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (event) => onSent?.(event.loaded / Math.max(1, event.total));
    request.onerror = () => reject(coded("W001", "the server is gone", "start clew explore again"));
    request.onabort = () => reject(coded("W002", "cancelled"));
    stop?.addEventListener("abort", () => request.abort());
    request.onload = () => {
      answer<BuildInfo>(new Response(request.responseText, { status: request.status })).then(resolve, reject);
    };
    request.send(body);
  });
}
