-- What a node has said of our chain, so that SQL can tell whether anybody who runs the scripts stands behind it.

create table ops.confirmed_tip (
    is_only_row boolean not null default true,
    height integer not null,
    hash bytea not null,
    peer text not null,
    at timestamptz not null,
    constraint confirmed_tip_pkey primary key (is_only_row),
    constraint confirmed_tip_is_only_row_check check (is_only_row)
);
comment on table ops.confirmed_tip is 'The last block up to which a node of --peer had the very chain that this database holds; no row before that was so.';
comment on column ops.confirmed_tip.is_only_row is 'Always true: there is one row at most.';
comment on column ops.confirmed_tip.height is 'Height of the block.';
comment on column ops.confirmed_tip.hash is 'Hash of the block, 32 bytes, internal byte order. If chain.blocks has another one at this height, the chain was changed since, from files alone.';
comment on column ops.confirmed_tip.peer is 'Address of the node, as --peer names it.';
comment on column ops.confirmed_tip.at is 'When the node last said so.';
