-- The service's own state: what is loaded, what is being built, what was measured.

create schema ops;
comment on schema ops is 'State of the Satgres service: segments, index jobs, phases, checks.';

create table ops.settings (
    key text not null,
    value text not null,
    constraint settings_pkey primary key (key)
);
comment on table ops.settings is 'Facts fixed when the database was made, and versions of what is installed in it.';
comment on column ops.settings.key is 'network, store_witness, store_script_sig, code_digest.';
comment on column ops.settings.value is 'The value, as text.';

create table ops.segments (
    segment_id integer not null,
    height_first integer not null,
    height_last integer not null,
    state text not null,
    tx_count bigint,
    input_count bigint,
    output_count bigint,
    block_bytes bigint,
    created_at timestamptz not null default now(),
    loaded_at timestamptz,
    attached_at timestamptz,
    constraint segments_pkey primary key (segment_id),
    constraint segments_state_check check (state in ('loading', 'loaded', 'attached'))
);
comment on table ops.segments is 'Ranges of heights whose rows are loaded together and stand in one partition of each chain table.';
comment on column ops.segments.segment_id is 'Number of the segment, from 0; part of its partitions'' names.';
comment on column ops.segments.height_first is 'First height.';
comment on column ops.segments.height_last is 'Last height, inclusive.';
comment on column ops.segments.state is 'loading: unfinished, dropped by the next start; loaded: all rows committed, indexes being built; attached: readers see it.';
comment on column ops.segments.tx_count is 'Transactions in it.';
comment on column ops.segments.input_count is 'Inputs in it.';
comment on column ops.segments.output_count is 'Outputs in it.';
comment on column ops.segments.block_bytes is 'Serialised size of its blocks, bytes.';
comment on column ops.segments.created_at is 'When loading began.';
comment on column ops.segments.loaded_at is 'When all its tables had committed.';
comment on column ops.segments.attached_at is 'When readers could first see it.';

create table ops.pending_overwritten (
    segment_id integer not null,
    tx_num bigint not null,
    vout integer not null,
    by_tx_num bigint not null,
    constraint pending_overwritten_pkey primary key (tx_num, vout)
);
comment on table ops.pending_overwritten is 'Rows for chain.overwritten that wait for their segment to be attached.';
comment on column ops.pending_overwritten.segment_id is 'The segment of by_tx_num.';
comment on column ops.pending_overwritten.tx_num is 'As in chain.overwritten.';
comment on column ops.pending_overwritten.vout is 'As in chain.overwritten.';
comment on column ops.pending_overwritten.by_tx_num is 'As in chain.overwritten.';

create table ops.index_jobs (
    segment_id integer not null,
    object_name text not null,
    table_name text not null,
    kind text not null,
    state text not null default 'queued',
    row_count bigint not null,
    started_at timestamptz,
    seconds double precision,
    bytes bigint,
    error text,
    constraint index_jobs_pkey primary key (segment_id, object_name),
    constraint index_jobs_kind_check check (kind in ('index', 'constraint', 'validate')),
    constraint index_jobs_state_check check (state in ('queued', 'running', 'done', 'failed'))
);
comment on table ops.index_jobs is 'Indexes and constraints of each segment: to build, being built, built. The catalogue decides what exists; this is the queue.';
comment on column ops.index_jobs.segment_id is 'The segment.';
comment on column ops.index_jobs.object_name is 'Name of the index or constraint in the catalogue.';
comment on column ops.index_jobs.table_name is 'The partition, without its schema.';
comment on column ops.index_jobs.kind is 'index: create index; constraint: add, not valid; validate: validate that constraint.';
comment on column ops.index_jobs.state is 'queued, running, done or failed.';
comment on column ops.index_jobs.row_count is 'Rows in the table; the longest are built first.';
comment on column ops.index_jobs.started_at is 'When it was last started.';
comment on column ops.index_jobs.seconds is 'How long it took.';
comment on column ops.index_jobs.bytes is 'Size of the index, bytes.';
comment on column ops.index_jobs.error is 'What the server said if it failed, such as a violated constraint.';

create table ops.phases (
    phase_id bigint generated always as identity,
    run_id bigint not null,
    phase text not null,
    started timestamptz not null,
    seconds double precision not null,
    height integer,
    blocks bigint,
    rows bigint,
    bytes bigint,
    peak_rss_bytes bigint,
    cache_hit_ratio double precision,
    cpu_seconds double precision,
    detail jsonb,
    constraint phases_pkey primary key (phase_id)
);
comment on table ops.phases is 'One row per phase, segment and index job: every PROFILE line, as data.';
comment on column ops.phases.phase_id is 'In order of ending.';
comment on column ops.phases.run_id is 'The start of the service it belongs to: its start time, microseconds since 1970.';
comment on column ops.phases.phase is 'The text of the PROFILE line, without its time.';
comment on column ops.phases.started is 'When it began.';
comment on column ops.phases.seconds is 'How long it took.';
comment on column ops.phases.height is 'Last height concerned, where there is one.';
comment on column ops.phases.blocks is 'Blocks handled.';
comment on column ops.phases.rows is 'Rows written or indexed.';
comment on column ops.phases.bytes is 'Bytes of blocks read, or of the index built.';
comment on column ops.phases.peak_rss_bytes is 'Largest resident memory of the service so far, bytes.';
comment on column ops.phases.cache_hit_ratio is 'Share of prevouts found in the UTXO cache.';
comment on column ops.phases.cpu_seconds is 'CPU time of the service in this phase, user and system.';
comment on column ops.phases.detail is 'Further figures of this kind of phase.';

create table ops.checks (
    check_id bigint generated always as identity,
    name text not null,
    at timestamptz not null default now(),
    seconds double precision not null,
    ok boolean not null,
    detail text,
    constraint checks_pkey primary key (check_id)
);
comment on table ops.checks is 'Results of verify and of constraint validation.';
comment on column ops.checks.check_id is 'In order of ending.';
comment on column ops.checks.name is 'What was checked.';
comment on column ops.checks.at is 'When.';
comment on column ops.checks.seconds is 'How long it took.';
comment on column ops.checks.ok is 'Whether it held.';
comment on column ops.checks.detail is 'What did not hold, and where.';

create table ops.invalid_blocks (
    hash bytea not null,
    height integer not null,
    reason text not null,
    file text,
    file_offset bigint,
    found_at timestamptz not null default now(),
    constraint invalid_blocks_pkey primary key (hash)
);
comment on table ops.invalid_blocks is 'Blocks that stand in the files but break a rule; they and their descendants are never connected.';
comment on column ops.invalid_blocks.hash is 'Block hash, 32 bytes, internal byte order.';
comment on column ops.invalid_blocks.height is 'Height in its branch.';
comment on column ops.invalid_blocks.reason is 'The rule it breaks, and where.';
comment on column ops.invalid_blocks.file is 'Block file it was read from.';
comment on column ops.invalid_blocks.file_offset is 'Offset of its header in that file, bytes.';
comment on column ops.invalid_blocks.found_at is 'When it was refused.';

create table ops.reorgs (
    reorg_id bigint generated always as identity,
    at timestamptz not null default now(),
    fork_height integer not null,
    depth integer not null,
    old_tip bytea not null,
    new_tip bytea not null,
    seconds double precision not null,
    constraint reorgs_pkey primary key (reorg_id)
);
comment on table ops.reorgs is 'Reorganisations that this database followed.';
comment on column ops.reorgs.reorg_id is 'In order.';
comment on column ops.reorgs.at is 'When it ended.';
comment on column ops.reorgs.fork_height is 'Height of the last common block.';
comment on column ops.reorgs.depth is 'Number of blocks disconnected.';
comment on column ops.reorgs.old_tip is 'Hash of the tip before, internal byte order.';
comment on column ops.reorgs.new_tip is 'Hash of the tip after, internal byte order.';
comment on column ops.reorgs.seconds is 'How long it took.';
