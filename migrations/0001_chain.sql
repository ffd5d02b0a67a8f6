-- The chain itself. Partitioned by tx_num, one partition per segment; indexes and constraints of the partitioned tables
-- are declared in sql/objects.toml and never here, so that a segment can be filled while it has none.

create schema chain;
comment on schema chain is 'The active Bitcoin chain, exactly as the block files hold it. Hashes are bytea in internal byte order, amounts are satoshis.';

create table chain.blocks (
    height integer not null,
    hash bytea not null,
    version integer not null,
    merkle_root bytea not null,
    time timestamptz not null,
    median_time timestamptz not null,
    bits bigint not null,
    nonce bigint not null,
    size integer not null,
    weight integer not null,
    tx_count integer not null,
    input_count integer not null,
    output_count integer not null,
    fees bigint not null,
    subsidy bigint not null,
    unclaimed bigint not null,
    chainwork bytea not null,
    constraint blocks_pkey primary key (height),
    constraint blocks_hash_key unique (hash)
);
comment on table chain.blocks is 'One row per block of the active chain, genesis included.';
comment on column chain.blocks.height is 'Height, 0 for genesis.';
comment on column chain.blocks.hash is 'Block hash, 32 bytes, internal byte order; chain.hash_hex(hash) gives the hex that people know.';
comment on column chain.blocks.version is 'Version, signed 32 bits, as in the header.';
comment on column chain.blocks.merkle_root is 'Merkle root, 32 bytes, internal byte order.';
comment on column chain.blocks.time is 'Time in the header, set by the miner; it may go backwards. 32 bits unsigned, seconds since 1970.';
comment on column chain.blocks.median_time is 'Median of the times of this block and its ten ancestors: mediantime in Bitcoin Core.';
comment on column chain.blocks.bits is 'Compact target, unsigned 32 bits.';
comment on column chain.blocks.nonce is 'Nonce, unsigned 32 bits.';
comment on column chain.blocks.size is 'Serialised size with witness, bytes.';
comment on column chain.blocks.weight is 'Weight (BIP141), weight units.';
comment on column chain.blocks.tx_count is 'Number of transactions, the coinbase included.';
comment on column chain.blocks.input_count is 'Number of rows of this block in chain.inputs, the coinbase input included.';
comment on column chain.blocks.output_count is 'Number of rows of this block in chain.outputs.';
comment on column chain.blocks.fees is 'Sum of the fees of all transactions, satoshis.';
comment on column chain.blocks.subsidy is 'New coins that the block may create, satoshis.';
comment on column chain.blocks.unclaimed is 'Subsidy and fees that the coinbase did not claim, satoshis; coinbase outputs + unclaimed = subsidy + fees.';
comment on column chain.blocks.chainwork is 'Work of the chain up to this block, 32 bytes, big-endian, so that encode(chainwork, ''hex'') is Bitcoin Core''s chainwork.';

create table chain.transactions (
    tx_num bigint not null,
    fee bigint,
    locktime bigint not null,
    height integer not null,
    version bigint not null,
    size integer not null,
    weight integer not null,
    input_count integer not null,
    output_count integer not null,
    txid bytea not null
) partition by range (tx_num);
comment on table chain.transactions is 'One row per transaction of the active chain.';
comment on column chain.transactions.tx_num is 'height * 65536 + index of the transaction in its block: unique, in chain order.';
comment on column chain.transactions.fee is 'Fee in satoshis; NULL for a coinbase.';
comment on column chain.transactions.locktime is 'Lock time, unsigned 32 bits.';
comment on column chain.transactions.height is 'Height of the block; tx_num >> 16.';
comment on column chain.transactions.version is 'Version, unsigned 32 bits as Bitcoin Core prints it.';
comment on column chain.transactions.size is 'Serialised size with witness, bytes.';
comment on column chain.transactions.weight is 'Weight (BIP141), weight units; virtual size is weight / 4 rounded up.';
comment on column chain.transactions.input_count is 'Number of inputs; 1 for a coinbase.';
comment on column chain.transactions.output_count is 'Number of outputs.';
comment on column chain.transactions.txid is 'Transaction id, 32 bytes, internal byte order. Not unique: two coinbases stand twice in the chain (BIP30).';

create table chain.outputs (
    tx_num bigint not null,
    value bigint not null,
    script_hash uuid not null,
    vout integer not null,
    script bytea not null
) partition by range (tx_num);
comment on table chain.outputs is 'One row per transaction output: the stream of credits.';
comment on column chain.outputs.tx_num is 'The transaction that made this output.';
comment on column chain.outputs.value is 'Amount, satoshis.';
comment on column chain.outputs.script_hash is 'First 16 bytes of sha256(script), in order: chain.script_hash(script). The identity of an address.';
comment on column chain.outputs.vout is 'Index of the output in its transaction, from 0.';
comment on column chain.outputs.script is 'scriptPubKey, exact bytes; an empty script has length 0.';

create table chain.inputs (
    tx_num bigint not null,
    prev_tx_num bigint,
    value bigint,
    script_hash uuid,
    sequence bigint not null,
    vin integer not null,
    prev_vout integer,
    script_sig bytea,
    witness bytea
) partition by range (tx_num);
comment on table chain.inputs is 'One row per transaction input, with the value and script of the output it spends: the stream of debits.';
comment on column chain.inputs.tx_num is 'The spending transaction.';
comment on column chain.inputs.prev_tx_num is 'The transaction whose output is spent; NULL for a coinbase.';
comment on column chain.inputs.value is 'Amount of the output spent, satoshis; NULL for a coinbase.';
comment on column chain.inputs.script_hash is 'script_hash of the output spent; NULL for a coinbase.';
comment on column chain.inputs.sequence is 'Sequence, unsigned 32 bits.';
comment on column chain.inputs.vin is 'Index of the input in its transaction, from 0.';
comment on column chain.inputs.prev_vout is 'Index of the output spent in its transaction; NULL for a coinbase.';
comment on column chain.inputs.script_sig is 'scriptSig, exact bytes; NULL where the store setting script_sig is none.';
comment on column chain.inputs.witness is 'Witness in its consensus encoding (count of items, then each with its length), length 0 where the input has none; NULL where the store setting witness is none.';

create table chain.overwritten (
    tx_num bigint not null,
    vout integer not null,
    by_tx_num bigint not null,
    constraint overwritten_pkey primary key (tx_num, vout)
);
comment on table chain.overwritten is 'Unspent outputs that a later coinbase with the same txid replaced (BIP30); nobody can spend them.';
comment on column chain.overwritten.tx_num is 'The earlier transaction.';
comment on column chain.overwritten.vout is 'Index of the output, the same in both.';
comment on column chain.overwritten.by_tx_num is 'The later transaction with the same txid.';

create table chain.stale_blocks (
    hash bytea not null,
    height integer not null,
    header bytea not null,
    first_seen timestamptz not null default now(),
    constraint stale_blocks_pkey primary key (hash)
);
comment on table chain.stale_blocks is 'Blocks known but not in the active chain. Other files or peers know others: this table is no part of the digest.';
comment on column chain.stale_blocks.hash is 'Block hash, 32 bytes, internal byte order.';
comment on column chain.stale_blocks.height is 'Height in its own branch.';
comment on column chain.stale_blocks.header is 'Header, 80 bytes.';
comment on column chain.stale_blocks.first_seen is 'When this database first saw it.';

create view chain.utxos as
    select o.tx_num, o.value, o.script_hash, o.vout, o.script
    from chain.outputs o
    where o.tx_num <> 0
      and o.tx_num >> 16 <= (select max(b.height) from chain.blocks b)
      and substr(o.script, 1, 1) <> '\x6a'::bytea
      and octet_length(o.script) <= 10000
      and not exists (
          select from chain.inputs i
          where i.prev_tx_num = o.tx_num and i.prev_vout = o.vout and i.tx_num >= o.tx_num
            and i.tx_num >> 16 <= (select max(b.height) from chain.blocks b))
      and (o.tx_num, o.vout) not in (select w.tx_num, w.vout from chain.overwritten w);
comment on view chain.utxos is 'The unspent outputs at the tip, as Bitcoin Core''s gettxoutsetinfo counts them: without the genesis output, scripts that begin with OP_RETURN or exceed 10,000 bytes, and overwritten ones.';
comment on column chain.utxos.tx_num is 'The transaction that made this output.';
comment on column chain.utxos.value is 'Amount, satoshis.';
comment on column chain.utxos.script_hash is 'First 16 bytes of sha256(script), in order: chain.script_hash(script).';
comment on column chain.utxos.vout is 'Index of the output in its transaction, from 0.';
comment on column chain.utxos.script is 'scriptPubKey, exact bytes.';
