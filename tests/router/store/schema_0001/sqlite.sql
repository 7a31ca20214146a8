CREATE TABLE executor_versions (
  version VARCHAR NOT NULL,
  state VARCHAR NOT NULL,
  share FLOAT NOT NULL,
  state_at FLOAT NOT NULL,
  registered_at FLOAT NOT NULL,
  manifest VARCHAR NOT NULL,
  PRIMARY KEY (version)
);

CREATE TABLE gateways (
  epoch BIGINT NOT NULL,
  log VARCHAR NOT NULL,
  session BIGINT NOT NULL,
  PRIMARY KEY (epoch)
);

CREATE TABLE leases (
  tenant VARCHAR NOT NULL,
  period VARCHAR NOT NULL,
  log VARCHAR NOT NULL,
  tokens BIGINT NOT NULL,
  nano_usd BIGINT NOT NULL,
  PRIMARY KEY (tenant, period, log)
);

CREATE TABLE logs (
  log VARCHAR NOT NULL,
  segment INTEGER NOT NULL,
  bytes BIGINT NOT NULL,
  PRIMARY KEY (log)
);

CREATE TABLE rolegate_schema (
  number INTEGER NOT NULL,
  PRIMARY KEY (number)
);

CREATE TABLE runs (
  run_id VARCHAR NOT NULL,
  tenant VARCHAR NOT NULL,
  key_id VARCHAR NOT NULL,
  kind VARCHAR NOT NULL,
  request_id VARCHAR,
  fingerprint VARCHAR NOT NULL,
  request VARCHAR NOT NULL,
  status VARCHAR NOT NULL,
  outcome VARCHAR NOT NULL,
  topology VARCHAR NOT NULL,
  unsupported BOOLEAN NOT NULL,
  answer VARCHAR NOT NULL,
  nano_usd BIGINT,
  started_at FLOAT NOT NULL,
  duration_s FLOAT NOT NULL,
  log VARCHAR NOT NULL,
  cancel_requested BOOLEAN NOT NULL,
  trace BLOB,
  PRIMARY KEY (run_id)
);

CREATE UNIQUE INDEX runs_by_request_id ON runs (tenant, request_id);

CREATE INDEX runs_by_status ON runs (status, tenant);

CREATE INDEX runs_by_tenant ON runs (tenant, started_at, run_id);

CREATE INDEX runs_by_time ON runs (started_at, run_id);

CREATE TABLE spending (
  tenant VARCHAR NOT NULL,
  period VARCHAR NOT NULL,
  requests BIGINT NOT NULL,
  tokens BIGINT NOT NULL,
  nano_usd BIGINT NOT NULL,
  PRIMARY KEY (tenant, period)
);

CREATE TABLE tenants (
  name VARCHAR NOT NULL,
  tokens_per_day BIGINT,
  tokens_per_month BIGINT,
  nano_usd_per_day BIGINT,
  nano_usd_per_month BIGINT,
  requests_per_day BIGINT,
  requests_per_month BIGINT,
  runs_in_flight BIGINT,
  redact BOOLEAN NOT NULL,
  training BOOLEAN NOT NULL,
  indexes VARCHAR NOT NULL,
  PRIMARY KEY (name)
);

CREATE TABLE usage_hours (
  tenant VARCHAR NOT NULL,
  hour INTEGER NOT NULL,
  role VARCHAR NOT NULL,
  model VARCHAR NOT NULL,
  deployment VARCHAR NOT NULL,
  executor_version VARCHAR NOT NULL,
  manager VARCHAR NOT NULL,
  attempts BIGINT NOT NULL,
  attempts_without_usage BIGINT NOT NULL,
  attempts_without_cost BIGINT NOT NULL,
  prompt_tokens BIGINT NOT NULL,
  completion_tokens BIGINT NOT NULL,
  cached_tokens BIGINT,
  reasoning_tokens BIGINT,
  wasted_tokens BIGINT NOT NULL,
  nano_usd BIGINT,
  PRIMARY KEY (tenant, hour, role, model, deployment, executor_version, manager)
);

CREATE INDEX usage_hours_by_time ON usage_hours (hour);

CREATE TABLE calls (
  run_id VARCHAR NOT NULL,
  tenant VARCHAR NOT NULL,
  number BIGINT NOT NULL,
  role VARCHAR NOT NULL,
  model VARCHAR NOT NULL,
  deployment VARCHAR NOT NULL,
  purpose VARCHAR NOT NULL,
  attempt BIGINT NOT NULL,
  sub_query_index BIGINT,
  max_tokens BIGINT NOT NULL,
  started_at FLOAT NOT NULL,
  prompt_bound BIGINT NOT NULL,
  manager VARCHAR NOT NULL,
  worker BIGINT,
  outcome VARCHAR NOT NULL,
  nano_usd BIGINT,
  first_token_s FLOAT,
  duration_s FLOAT NOT NULL,
  executor_version VARCHAR NOT NULL,
  reserved_tokens BIGINT NOT NULL,
  reserved_nano_usd BIGINT,
  prompt_tokens BIGINT,
  completion_tokens BIGINT,
  cached_tokens BIGINT,
  reasoning_tokens BIGINT,
  counted VARCHAR NOT NULL,
  wasted_tokens BIGINT NOT NULL,
  PRIMARY KEY (run_id, number),
  FOREIGN KEY(run_id) REFERENCES runs (run_id)
);

CREATE INDEX calls_by_deployment ON calls (deployment, started_at);

CREATE INDEX calls_by_tenant ON calls (tenant, started_at);

CREATE TABLE feedback (
  feedback_id VARCHAR NOT NULL,
  run_id VARCHAR NOT NULL,
  given_at FLOAT NOT NULL,
  accepted BOOLEAN,
  score FLOAT,
  right_answer VARCHAR NOT NULL,
  comment VARCHAR NOT NULL,
  tenant VARCHAR,
  PRIMARY KEY (feedback_id),
  FOREIGN KEY(run_id) REFERENCES runs (run_id)
);

CREATE INDEX ix_feedback_run_id ON feedback (run_id);

CREATE TABLE keys (
  key_id VARCHAR NOT NULL,
  scopes VARCHAR NOT NULL,
  label VARCHAR NOT NULL,
  secret_sha256 VARCHAR NOT NULL,
  created_at FLOAT NOT NULL,
  revoked_at FLOAT,
  tenant VARCHAR,
  PRIMARY KEY (key_id),
  FOREIGN KEY(tenant) REFERENCES tenants (name)
);

CREATE TABLE version_decisions (
  version VARCHAR NOT NULL,
  decision VARCHAR NOT NULL,
  from_state VARCHAR,
  to_state VARCHAR NOT NULL,
  decided_by VARCHAR NOT NULL,
  decided_at FLOAT NOT NULL,
  reason VARCHAR NOT NULL,
  figures VARCHAR,
  number BIGINT NOT NULL,
  PRIMARY KEY (number),
  FOREIGN KEY(version) REFERENCES executor_versions (version)
);

CREATE INDEX ix_version_decisions_version ON version_decisions (version);

CREATE TABLE version_trials (
  run_id VARCHAR NOT NULL,
  candidate VARCHAR NOT NULL,
  active VARCHAR NOT NULL,
  stage VARCHAR NOT NULL,
  candidate_served BOOLEAN NOT NULL,
  ended_at FLOAT NOT NULL,
  candidate_answer VARCHAR NOT NULL,
  candidate_failed BOOLEAN NOT NULL,
  candidate_tokens BIGINT NOT NULL,
  active_answer VARCHAR NOT NULL,
  active_failed BOOLEAN NOT NULL,
  active_tokens BIGINT NOT NULL,
  candidate_right BOOLEAN,
  active_right BOOLEAN,
  source VARCHAR,
  tenant VARCHAR,
  judged_at FLOAT,
  PRIMARY KEY (run_id),
  FOREIGN KEY(run_id) REFERENCES runs (run_id)
);

CREATE INDEX version_trials_by_candidate ON version_trials (candidate, stage, ended_at);

INSERT INTO rolegate_schema (number) VALUES (8);
