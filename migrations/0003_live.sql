-- Live segments: partitions that are filled block by block, with their indexes present.

alter table ops.segments drop constraint segments_state_check;
alter table ops.segments add constraint segments_state_check check (state in ('loading', 'loaded', 'live', 'attached'));
alter table ops.segments add column changed_at timestamptz;
comment on column ops.segments.height_last is 'Last height, inclusive; of a live segment the planned one. The tip is max(chain.blocks.height).';
comment on column ops.segments.state is 'loading: unfinished, dropped by the next start; loaded: all rows committed, indexes being built; live: readers see it, and it is filled block by block up to height_last; attached: readers see it, and it is complete.';
comment on column ops.segments.changed_at is 'When a reorg last removed blocks from it after it had been complete; NULL if never.';

comment on column ops.segments.loaded_at is 'When it was complete: all its tables had committed, or its last block was connected.';
