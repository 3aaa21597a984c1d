/** The service's routes. Errors carry the service's problem details. */

export class ServiceError extends Error {
  constructor(status, detail, retryAfter) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const wait = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
const RETRY_SECONDS = 60;
/** How long an upload is retried while the service is overloaded. */

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(`/v1/${path}`, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError(0, "The service does not respond. Is it running?");
  }
  if (response.ok) return response.status === 204 ? null : response.json();
  let detail = `${response.status} ${response.statusText}`;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* no problem details, for example from a proxy */ }
  if (response.status === 401) window.dispatchEvent(new Event("signed-out"));
  throw new ServiceError(response.status, detail, Number(response.headers.get("Retry-After")) || 0);
}

/** The query string of parameters; empty values are left out. */
export function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, value);
  }
  const text = search.toString();
  return text ? `?${text}` : "";
}

const post = (path, body) => send("POST", path, body);

const send = (method, path, body) => ask(path, {
  method,
  headers: body === undefined ? {} : { "Content-Type": "application/json" },
  body: body === undefined ? undefined : JSON.stringify(body),
});

const at = encodeURIComponent;

export const api = {
  me: () => ask("me"),
  waysToSignIn: () => ask("session"),
  signIn: (shown) => post("session", shown),
  signOut: () => ask("session", { method: "DELETE" }),
  changePassword: (password, next) => post("users/me/password", { password, new: next }),
  users: async () => (await ask("users")).users,
  addUser: (user) => post("users", user),
  changeUser: (name, change) => send("PATCH", `users/${at(name)}`, change),
  deleteUser: (name) => ask(`users/${at(name)}`, { method: "DELETE" }),
  keys: async () => (await ask("keys")).keys,
  addKey: (key) => post("keys", key),
  revokeKey: (name) => ask(`keys/${at(name)}`, { method: "DELETE" }),
  audit: (filter) => ask(`audit${query(filter)}`),
  auditVerification: () => ask("audit/verification"),
  modelList: () => ask("models"),
  model: (name) => ask(`models/${at(name)}`),
  reload: (name) => post(`models/${at(name)}/reload`),
  check: (name) => post(`models/${at(name)}/check`),
  candidate: (name) => ask(`models/${at(name)}/candidate`),
  setCandidate: (name, model) => send("PUT", `models/${at(name)}/candidate`, { model }),
  removeCandidate: (name) => send("DELETE", `models/${at(name)}/candidate`),
  shadow: (name) => ask(`models/${at(name)}/shadow`),
  disagreements: (name, filter) => ask(`models/${at(name)}/disagreements${query(filter)}`),
  switchModel: (name, identity) => post(`models/${at(name)}/switch`, { identity }),
  rollBack: (name, identity) => post(`models/${at(name)}/rollback`, { identity }),
  tradeOff: (name) => ask(`models/${at(name)}/trade-off`),
  thresholdProposal: (name) => ask(`models/${at(name)}/threshold-proposal`),
  setThreshold: (name, wanted) => post(`models/${at(name)}/threshold`, wanted),
  recalibration: (name) => ask(`models/${at(name)}/recalibration`),
  recalibrate: (name, request) => post(`models/${at(name)}/recalibration`, request),
  drift: (name) => ask(`models/${at(name)}/drift`),
  inspections: (filter, signal) => ask(`inspections${query(filter)}`, { signal }),
  inspection: (id) => ask(`inspections/${id}`),
  counts: (filter) => ask(`inspections/counts${query(filter)}`),
  scores: (filter) => ask(`inspections/scores${query(filter)}`),
  explanation: (id) => ask(`inspections/${id}/explanation`),
  review: (id, verdict, note = "") => post(`inspections/${id}/review`, { verdict, note }),
  annotation: (id) => ask(`inspections/${id}/annotation`),
  annotate: (id, shapes) => send("PUT", `inspections/${id}/annotation`, { shapes }),
  learn: (name, request) => post(`models/${at(name)}/learn`, request),
  teach: (name, request) => post(`models/${at(name)}/teach`, request),
  undo: (name, change) => post(`models/${at(name)}/undo`, change),
  line: (signal) => ask("line", { signal }),
  acknowledge: () => post("line/acknowledge"),
  pauseLine: () => post("line/pause"),
  resumeLine: () => post("line/resume"),
  lineStatistics: (period) => ask(`line/statistics${query(period)}`),
  parts: (filter) => ask(`parts${query(filter)}`),
  overview: (hours) => ask(`overview${query({ hours })}`),
  sample: (model) => ask(`samples${query({ model })}`),
  setSample: (model, perDay) => ask(`samples/${at(model)}`, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ per_day: perDay }) }),
  jobs: async (filter = {}) => (await ask(`jobs${query(filter)}`)).jobs,
  job: (id) => ask(`jobs/${id}`),
  cancel: (id) => post(`jobs/${id}/cancel`),
  continueJob: (id) => post(`jobs/${id}/continue`),
  restartJob: (id) => post(`jobs/${id}/restart`),

  /** Inspect a file; retries while the service is overloaded. `trace`: serial, lot, line, station; `key`: the same for the same image. */
  async inspect(model, file, { trace = {}, key = null, signal = null } = {}) {
    const until = Date.now() + 1000 * RETRY_SECONDS;
    for (;;) {
      const form = new FormData();
      form.append("file", file, file.name);
      try {
        return await ask(`models/${at(model)}/inspect${query(trace)}`, { method: "POST", body: form, signal, headers: key ? { "Idempotency-Key": key } : {} });
      } catch (error) {
        if (error.status !== 503 || Date.now() > until) throw error;
        await wait(Math.max(1, error.retryAfter));
        signal?.throwIfAborted();
      }
    }
  },

  /** Start a training; `onSent` receives the progress of the upload. Returns the job. */
  train(fields, files, onSent) {
    const form = new FormData();
    for (const [name, value] of Object.entries(fields)) if (value !== "") form.append(name, value);
    for (const file of files) form.append("files", file, file.name);
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", "/v1/trainings");
      request.responseType = "json";
      request.upload.onprogress = (event) => onSent(event.loaded, event.total);
      request.onerror = () => reject(new ServiceError(0, "The upload was interrupted. Is the service running?"));
      request.onload = () => {
        const body = request.response;
        if (request.status < 300) return resolve(body);
        if (request.status === 401) window.dispatchEvent(new Event("signed-out"));
        return reject(new ServiceError(request.status, body?.detail || request.statusText));
      };
      request.send(form);
    });
  },
};

export const pictureOf = (id, side) => `/v1/inspections/${id}/picture${query({ side })}`;
export const shiftReport = (parameters) => `/v1/reports/shift${query(parameters)}`;
export const auditReport = (kind, filter = {}) => `/v1/reports/audit.${kind}${query(filter)}`;
export const mapOf = (id) => `/v1/inspections/${id}/map`;
export const goodPicture = (model, index, identity) => `/v1/models/${at(model)}/pictures/${index}${query({ identity })}`;
export const jobPicture = (id, file) => `/v1/jobs/${id}/pictures/${at(file)}`;

/** Follow a job until it has ended; `onChange` receives every state. Returns null when `signal` is aborted. */
export async function follow(id, onChange, signal, every = 0.7) {
  for (;;) {
    if (signal?.aborted) return null;
    try {
      const job = await api.job(id);
      if (signal?.aborted) return null;
      onChange(job);
      if (!["waiting", "running"].includes(job.state)) return job;
    } catch (error) {
      if (error.status !== 0 && error.status !== 503) throw error;  // a restarted service resumes the job
    }
    await wait(every);
  }
}
