-- Functions of schema chain: numbers, hashes, scripts, addresses, transactions. Executed after the migrations, at
-- every upgrade; `create or replace` throughout, plain SQL and PL/pgSQL, no extension, no superuser.
--
-- Functions on one line of `return` are inlined by the planner: a filter on one of them is a filter on its body, so a
-- height range prunes partitions. The names in such a body are resolved here, once, and not by the caller's
-- search_path; a SET clause would forbid the inlining. The others run with search_path = pg_catalog and name the rest
-- in full. An argument that is NULL gives NULL. What cannot be understood is an error with SQLSTATE 22023
-- (invalid_parameter_value) that says what was expected.

-- Numbers

create or replace function chain.first_tx_num(height integer) returns bigint
language sql immutable strict parallel safe
return height::bigint << 16;
comment on function chain.first_tx_num(integer) is 'tx_num of the coinbase of the block at this height: height * 65536. A height range is tx_num >= chain.first_tx_num(first) and tx_num < chain.first_tx_num(last + 1).';

create or replace function chain.height(tx_num bigint) returns integer
language sql immutable strict parallel safe
return (tx_num >> 16)::integer;
comment on function chain.height(bigint) is 'Height of the block of a transaction: tx_num >> 16. To filter by height use chain.first_tx_num, which an index can serve.';

create or replace function chain.tip_height() returns integer
language sql stable parallel safe
return (select max(b.height) from chain.blocks b);
comment on function chain.tip_height() is 'Height of the tip in the snapshot of the caller; NULL while there is no block.';

create or replace function chain.refuse(message text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    raise exception using errcode = 'invalid_parameter_value', message = message;
end
$$;
comment on function chain.refuse(text) is 'Raises an error (SQLSTATE 22023) with this message; for functions that are one expression.';

create or replace function chain.network() returns text
language plpgsql stable parallel safe set search_path = pg_catalog as $$
declare
    network text := (select s.value from ops.settings s where s.key = 'network');
begin
    if network is null then
        raise exception 'the network of this database is not known: ops.settings has no row ''network'''
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    return network;
end
$$;
comment on function chain.network() is 'Network of this database: main, test, testnet4, signet or regtest.';

create or replace function chain.subsidy(height integer, network text) returns bigint
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    if network not in ('main', 'test', 'testnet4', 'signet', 'regtest') then
        perform chain.refuse(format('unknown network "%s": expected main, test, testnet4, signet or regtest', network));
    elsif height < 0 then
        perform chain.refuse(format('invalid height %s: expected 0 or more', height));
    end if;
    return 5000000000 >> least(height / case network when 'regtest' then 150 else 210000 end, 63);
end
$$;
comment on function chain.subsidy(integer, text) is 'New coins that a block at this height may create, satoshis: 50 BTC, halved every 210,000 blocks (150 on regtest).';

create or replace function chain.difficulty(bits bigint) returns double precision
language sql immutable strict parallel safe
return 65535::double precision / (bits & 16777215)::double precision
    * power(256::double precision, (29 - (bits >> 24))::double precision);
comment on function chain.difficulty(bigint) is 'Difficulty of a compact target, as Bitcoin Core computes it: how many times harder than the easiest mainnet target.';

-- Bytes

create or replace function chain.le_bytes(value bigint, size integer) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    return substr(
        set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte('\x0000000000000000'::bytea,
        0, (value & 255)::integer), 1, (value >> 8 & 255)::integer), 2, (value >> 16 & 255)::integer),
        3, (value >> 24 & 255)::integer), 4, (value >> 32 & 255)::integer), 5, (value >> 40 & 255)::integer),
        6, (value >> 48 & 255)::integer), 7, (value >> 56 & 255)::integer), 1, size);
end
$$;
comment on function chain.le_bytes(bigint, integer) is 'The low `size` bytes (1 to 8) of a number, least significant first.';

create or replace function chain.compact_size(count bigint) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    if count < 0 then
        perform chain.refuse(format('invalid count %s: expected 0 or more', count));
    end if;
    return case
        when count < 253 then chain.le_bytes(count, 1)
        when count < 65536 then '\xfd'::bytea || chain.le_bytes(count, 2)
        when count < 4294967296 then '\xfe'::bytea || chain.le_bytes(count, 4)
        else '\xff'::bytea || chain.le_bytes(count, 8)
    end;
end
$$;
comment on function chain.compact_size(bigint) is 'A count in the consensus encoding: 1, 3, 5 or 9 bytes.';

create or replace function chain.reverse_hash(hash bytea) returns bytea
language sql immutable parallel safe
-- No format() here: it is STABLE, and an IMMUTABLE function that calls it is not inlined.
-- 64 calls that touch one byte each; 0.55 us a hash. Tried: || of 32 substr 1.2 us, shifts of a bit string 1.1 us,
-- translate() of the hex 5 us, a regular expression 6 us.
return case when octet_length(hash) = 32 then
    set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(
    set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(
    set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(
    set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(hash,
    0, get_byte(hash, 31)), 1, get_byte(hash, 30)), 2, get_byte(hash, 29)), 3, get_byte(hash, 28)),
    4, get_byte(hash, 27)), 5, get_byte(hash, 26)), 6, get_byte(hash, 25)), 7, get_byte(hash, 24)),
    8, get_byte(hash, 23)), 9, get_byte(hash, 22)), 10, get_byte(hash, 21)), 11, get_byte(hash, 20)),
    12, get_byte(hash, 19)), 13, get_byte(hash, 18)), 14, get_byte(hash, 17)), 15, get_byte(hash, 16)),
    16, get_byte(hash, 15)), 17, get_byte(hash, 14)), 18, get_byte(hash, 13)), 19, get_byte(hash, 12)),
    20, get_byte(hash, 11)), 21, get_byte(hash, 10)), 22, get_byte(hash, 9)), 23, get_byte(hash, 8)),
    24, get_byte(hash, 7)), 25, get_byte(hash, 6)), 26, get_byte(hash, 5)), 27, get_byte(hash, 4)),
    28, get_byte(hash, 3)), 29, get_byte(hash, 2)), 30, get_byte(hash, 1)), 31, get_byte(hash, 0))
    when hash is not null then chain.refuse('invalid hash: expected 32 bytes, got ' || octet_length(hash)::text)
end;
comment on function chain.reverse_hash(bytea) is 'The 32 bytes of a hash in the opposite order: internal to displayed, and back.';

create or replace function chain.hash_hex(hash bytea) returns text
language sql immutable parallel safe
return encode(chain.reverse_hash(hash), 'hex');
comment on function chain.hash_hex(bytea) is 'The hex that people know of a 32-byte hash (block, transaction, merkle root) in internal byte order.';

create or replace function chain.hex_hash(hex text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    if hex !~ '^[0-9a-fA-F]{64}$' then
        perform chain.refuse(format('invalid hash "%s": expected 64 hexadecimal digits', left(hex, 100)));
    end if;
    return chain.reverse_hash(decode(hex, 'hex'));
end
$$;
comment on function chain.hex_hash(text) is 'A 32-byte hash in internal byte order from the hex that people know; an error unless it is 64 hexadecimal digits.';

create or replace function chain.txid_hex(txid bytea) returns text
language sql immutable parallel safe
return encode(chain.reverse_hash(txid), 'hex');
comment on function chain.txid_hex(bytea) is 'The hex that people know of a txid in internal byte order: chain.hash_hex.';

create or replace function chain.hex_txid(hex text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
begin
    if hex !~ '^[0-9a-fA-F]{64}$' then
        perform chain.refuse(format('invalid txid "%s": expected 64 hexadecimal digits', left(hex, 100)));
    end if;
    return chain.reverse_hash(decode(hex, 'hex'));
end
$$;
comment on function chain.hex_txid(text) is 'A txid in internal byte order, as in chain.transactions.txid, from the hex that people know; an error unless it is 64 hexadecimal digits.';

-- Scripts

create or replace function chain.script_hash(script bytea) returns uuid
language sql immutable strict parallel safe
return encode(substr(sha256(script), 1, 16), 'hex')::uuid;
comment on function chain.script_hash(bytea) is 'First 16 bytes of sha256(script), in order: the identity of a script in chain.outputs and chain.inputs.';

create or replace function chain.is_push_only(script bytea, start integer) returns boolean
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    bytes bytea := script || ''::bytea; -- unpacked once, not at every get_byte
    size integer := octet_length(script);
    at bigint := start;
    opcode integer;
begin
    while at < size loop
        opcode := get_byte(bytes, at::integer);
        if opcode <= 75 then
            at := at + 1 + opcode;
        elsif opcode between 79 and 96 then
            at := at + 1;
        elsif opcode = 76 and at + 1 < size then
            at := at + 2 + get_byte(bytes, at::integer + 1);
        elsif opcode = 77 and at + 2 < size then
            at := at + 3 + get_byte(bytes, at::integer + 1) + (get_byte(bytes, at::integer + 2) << 8);
        elsif opcode = 78 and at + 4 < size then
            at := at + 5 + get_byte(bytes, at::integer + 1) + (get_byte(bytes, at::integer + 2) << 8)
                + (get_byte(bytes, at::integer + 3) << 16) + (get_byte(bytes, at::integer + 4)::bigint << 24);
        else
            return false;
        end if;
    end loop;
    return at = size;
end
$$;
comment on function chain.is_push_only(bytea, integer) is 'Whether a script, from the byte at `start` (from 0), holds only whole pushes: opcodes up to OP_16.';

create or replace function chain.multisig_number(script bytea, start integer) returns integer
language sql immutable parallel safe
return case
    when get_byte(script, start) between 81 and 96 then get_byte(script, start) - 80
    when get_byte(script, start) = 1 and octet_length(script) > start + 1
        and get_byte(script, start + 1) between 17 and 20 then get_byte(script, start + 1)
end;
comment on function chain.multisig_number(bytea, integer) is 'The count of keys or signatures, 1 to 20, pushed in its shortest form by the opcode at `start` (from 0): OP_1 to OP_16, or one byte; NULL for anything else.';

create or replace function chain.is_multisig(script bytea) returns boolean
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    bytes bytea := script || ''::bytea;
    size integer := octet_length(script);
    required integer;
    keys integer := 0;
    at integer;
    key_size integer;
    first_byte integer;
begin
    -- The shortest is OP_1 <33 bytes> OP_1 OP_CHECKMULTISIG; the longest has 20 keys of 65 bytes, each pushed by
    -- OP_PUSHDATA4.
    if size not between 37 and 1405 or get_byte(bytes, size - 1) <> 174 then
        return false;
    end if;
    required := chain.multisig_number(bytes, 0);
    if required is null then
        return false;
    end if;
    at := case when required > 16 then 2 else 1 end;
    -- Keys: any push of 33 bytes beginning with 2 or 3, or of 65 beginning with 4, 6 or 7.
    loop
        key_size := get_byte(bytes, at);
        if key_size = 76 and at + 1 < size then
            key_size := get_byte(bytes, at + 1);
            at := at + 2;
        elsif key_size = 77 and at + 2 < size and get_byte(bytes, at + 2) = 0 then
            key_size := get_byte(bytes, at + 1);
            at := at + 3;
        elsif key_size = 78 and at + 4 < size and substr(bytes, at + 3, 3) = '\x000000' then
            key_size := get_byte(bytes, at + 1);
            at := at + 5;
        elsif key_size in (33, 65) then
            at := at + 1;
        else
            exit;
        end if;
        -- After the key there must be room for the count of keys and OP_CHECKMULTISIG.
        if key_size not in (33, 65) or at + key_size + 2 > size then
            return false;
        end if;
        first_byte := get_byte(bytes, at);
        if not (key_size = 33 and first_byte in (2, 3) or key_size = 65 and first_byte in (4, 6, 7)) then
            return false;
        end if;
        keys := keys + 1;
        at := at + key_size;
    end loop;
    return keys >= required and chain.multisig_number(bytes, at) is not distinct from keys
        and size = at + case when keys > 16 then 3 else 2 end;
end
$$;
comment on function chain.is_multisig(bytea) is 'Whether a script is a bare m-of-n multisignature as Bitcoin Core recognises it, n up to 20.';

create or replace function chain.script_type(script bytea) returns text
language sql immutable parallel safe
return case
    when octet_length(script) = 22 and substr(script, 1, 2) = '\x0014'::bytea then 'witness_v0_keyhash'
    when octet_length(script) = 25 and substr(script, 1, 3) = '\x76a914'::bytea
        and substr(script, 24, 2) = '\x88ac'::bytea then 'pubkeyhash'
    when octet_length(script) = 34 and substr(script, 1, 2) = '\x5120'::bytea then 'witness_v1_taproot'
    when octet_length(script) = 23 and substr(script, 1, 2) = '\xa914'::bytea and substr(script, 23, 1) = '\x87'::bytea
        then 'scripthash'
    when octet_length(script) = 34 and substr(script, 1, 2) = '\x0020'::bytea then 'witness_v0_scripthash'
    when script = '\x51024e73'::bytea then 'anchor'
    when octet_length(script) between 4 and 42 and substr(script, 1, 1) between '\x51'::bytea and '\x60'::bytea
        and get_byte(script, 1) = octet_length(script) - 2 then 'witness_unknown'
    when substr(script, 1, 1) = '\x6a'::bytea then case
        when octet_length(script) between 2 and 77 and get_byte(script, 1) = octet_length(script) - 2
            or chain.is_push_only(script, 1) then 'nulldata' else 'nonstandard' end
    when octet_length(script) = 35 and substr(script, 1, 2) in ('\x2102'::bytea, '\x2103'::bytea)
        and substr(script, 35, 1) = '\xac'::bytea then 'pubkey'
    when octet_length(script) = 67 and substr(script, 1, 2) in ('\x4104'::bytea, '\x4106'::bytea, '\x4107'::bytea)
        and substr(script, 67, 1) = '\xac'::bytea then 'pubkey'
    when substr(script, octet_length(script), 1) = '\xae'::bytea and chain.is_multisig(script) then 'multisig'
    when script is not null then 'nonstandard'
end;
comment on function chain.script_type(bytea) is 'Type of a scriptPubKey under Bitcoin Core''s name: pubkey, pubkeyhash, scripthash, multisig, nulldata, witness_v0_keyhash, witness_v0_scripthash, witness_v1_taproot, anchor, witness_unknown or nonstandard.';

-- Addresses

create or replace function chain.encode_base58check(payload bytea) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    alphabet constant bytea := '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';
    bytes bytea := payload || substr(sha256(sha256(payload)), 1, 4);
    rest numeric;
    part bigint;
    at integer := 40;
    digits bytea := '1111111111111111111111111111111111111111';
begin
    if octet_length(payload) <> 21 then
        perform chain.refuse(format('invalid payload: expected a version byte and 20 bytes, got %s bytes',
            octet_length(payload)));
    end if;
    -- 25 bytes as one number: 7 bytes, then 6 at a time.
    rest := ('x' || encode(substr(bytes, 1, 7), 'hex'))::bit(56)::bigint;
    rest := rest * 281474976710656 + ('x' || encode(substr(bytes, 8, 6), 'hex'))::bit(48)::bigint;
    rest := rest * 281474976710656 + ('x' || encode(substr(bytes, 14, 6), 'hex'))::bit(48)::bigint;
    rest := rest * 281474976710656 + ('x' || encode(substr(bytes, 20, 6), 'hex'))::bit(48)::bigint;
    -- From the right, ten digits at a time: 58^10 fits a bigint.
    while rest > 0 loop
        part := mod(rest, 430804206899405824);
        rest := div(rest, 430804206899405824);
        at := at - 10;
        digits := set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(digits,
            at, get_byte(alphabet, (part / 7427658739644928)::integer)),
            at + 1, get_byte(alphabet, (part / 128063081718016 % 58)::integer)),
            at + 2, get_byte(alphabet, (part / 2207984167552 % 58)::integer)),
            at + 3, get_byte(alphabet, (part / 38068692544 % 58)::integer)),
            at + 4, get_byte(alphabet, (part / 656356768 % 58)::integer)),
            at + 5, get_byte(alphabet, (part / 11316496 % 58)::integer)),
            at + 6, get_byte(alphabet, (part / 195112 % 58)::integer)),
            at + 7, get_byte(alphabet, (part / 3364 % 58)::integer)),
            at + 8, get_byte(alphabet, (part / 58 % 58)::integer)),
            at + 9, get_byte(alphabet, (part % 58)::integer));
    end loop;
    -- A leading zero byte is a '1'.
    return repeat('1', 25 - octet_length(ltrim(bytes, '\x00'::bytea))) || encode(ltrim(digits, '1'::bytea), 'escape');
end
$$;
comment on function chain.encode_base58check(bytea) is 'Base58check of a version byte and a 20-byte hash.';

create or replace function chain.bech32_start(prefix text) returns integer
language sql immutable strict parallel safe
return case prefix when 'bc' then 36798531 when 'tb' then 36799106 when 'bcrt' then 393601293 end;
comment on function chain.bech32_start(text) is 'State of the BIP173 checksum after the human-readable prefix bc, tb or bcrt; NULL for any other.';

create or replace function chain.bech32_step(state integer, quintet integer) returns integer
language sql immutable parallel safe
-- The table is BIP173's five generators, combined by the bits of its index.
return ((state & 33554431) << 5) # quintet # ('{0,996825010,642813549,490396127,513874426,634080840,955357079,60538917,'
    '1027748829,103310447,454213040,544795138,602090023,411663765,95659082,1054471160,705979059,293483777,205843678,'
    '925809516,884308809,266284283,317060388,697279126,391532910,742131420,822533891,174885041,167200916,849157926,'
    '799524601,349016395}'::integer[])[(state >> 25) + 1];
comment on function chain.bech32_step(integer, integer) is 'The BIP173 checksum after one more 5-bit value.';

create or replace function chain.encode_segwit(prefix text, version integer, program bytea) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    charset constant bytea := 'qpzry9x8gf2tvdw0s3jn54khce6mua7l';
    quintets integer := (octet_length(program) * 8 + 4) / 5;
    padded bytea := program || '\x00000000'::bytea;
    state integer := chain.bech32_step(chain.bech32_start(prefix), version);
    part bigint;
    digits bytea := '';
begin
    -- 5 bytes are 8 characters.
    for at in 1 .. octet_length(program) by 5 loop
        part := ('x' || encode(substr(padded, at, 5), 'hex'))::bit(40)::bigint;
        for shift in reverse 35 .. greatest(0, 35 - 5 * (quintets - octet_length(digits) - 1)) by 5 loop
            state := chain.bech32_step(state, (part >> shift & 31)::integer);
        end loop;
        digits := digits || set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte(set_byte('        '::bytea,
            0, get_byte(charset, (part >> 35)::integer)), 1, get_byte(charset, (part >> 30 & 31)::integer)),
            2, get_byte(charset, (part >> 25 & 31)::integer)), 3, get_byte(charset, (part >> 20 & 31)::integer)),
            4, get_byte(charset, (part >> 15 & 31)::integer)), 5, get_byte(charset, (part >> 10 & 31)::integer)),
            6, get_byte(charset, (part >> 5 & 31)::integer)), 7, get_byte(charset, (part & 31)::integer));
    end loop;
    for zero in 1 .. 6 loop
        state := chain.bech32_step(state, 0);
    end loop;
    -- Version 0 is bech32 (BIP173), the others bech32m (BIP350).
    state := state # case version when 0 then 1 else 734539939 end;
    return prefix || '1' || encode(substr(charset, version + 1, 1) || substr(digits, 1, quintets)
        || set_byte(set_byte(set_byte(set_byte(set_byte(set_byte('      '::bytea,
            0, get_byte(charset, state >> 25)), 1, get_byte(charset, state >> 20 & 31)),
            2, get_byte(charset, state >> 15 & 31)), 3, get_byte(charset, state >> 10 & 31)),
            4, get_byte(charset, state >> 5 & 31)), 5, get_byte(charset, state & 31)), 'escape');
end
$$;
comment on function chain.encode_segwit(text, integer, bytea) is 'Address of a witness program: bech32 for version 0, bech32m above. Prefix bc, tb or bcrt.';

create or replace function chain.script_address(script bytea, network text) returns text
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    size integer := octet_length(script);
    version integer;
begin
    if network not in ('main', 'test', 'testnet4', 'signet', 'regtest') then
        perform chain.refuse(format('unknown network "%s": expected main, test, testnet4, signet or regtest', network));
    elsif size not between 4 and 42 then
        return null;
    elsif size = 25 and substr(script, 1, 3) = '\x76a914' and substr(script, 24, 2) = '\x88ac' then
        return chain.encode_base58check(
            case network when 'main' then '\x00' else '\x6f' end::bytea || substr(script, 4, 20));
    elsif size = 23 and substr(script, 1, 2) = '\xa914' and get_byte(script, 22) = 135 then
        return chain.encode_base58check(
            case network when 'main' then '\x05' else '\xc4' end::bytea || substr(script, 3, 20));
    end if;
    version := get_byte(script, 0);
    if get_byte(script, 1) = size - 2 and (version between 81 and 96 or version = 0 and size in (22, 34)) then
        return chain.encode_segwit(case network when 'main' then 'bc' when 'regtest' then 'bcrt' else 'tb' end,
            case version when 0 then 0 else version - 80 end, substr(script, 3));
    end if;
    return null;
end
$$;
comment on function chain.script_address(bytea, text) is 'Address of a scriptPubKey on a network (main, test, testnet4, signet, regtest); NULL where Bitcoin Core gives none: pubkey, multisig, nulldata, nonstandard.';

create or replace function chain.script_address(script bytea) returns text
language sql stable parallel safe
return chain.script_address(script, chain.network());
comment on function chain.script_address(bytea) is 'Address of a scriptPubKey on the network of this database; NULL where there is none.';

create or replace function chain.decode_base58check(address text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    alphabet constant text := '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';
    digit integer;
    rest numeric := 0;
    bytes bytea := '';
begin
    -- 25 bytes have at most 35 digits; no more are looked at.
    if char_length(address) not between 25 and 35 then
        perform chain.refuse(format('invalid address "%s": %s characters, expected 25 to 35 of base58',
            left(address, 100), char_length(address)));
    end if;
    for at in 1 .. char_length(address) loop
        digit := strpos(alphabet, substr(address, at, 1)) - 1;
        if digit < 0 then
            perform chain.refuse(format('invalid address "%s": "%s" is no base58 character',
                address, substr(address, at, 1)));
        end if;
        rest := rest * 58 + digit;
    end loop;
    for part in 1 .. 4 loop
        bytes := substr(int8send(mod(rest, 281474976710656)::bigint), 3) || bytes;
        rest := div(rest, 281474976710656);
    end loop;
    if rest <= 255 then
        bytes := substr(int8send(rest::bigint), 8) || bytes;
    end if;
    -- Every leading '1' is a zero byte, so a shorter or longer text is another number of bytes.
    if rest > 255 or char_length(address) - char_length(ltrim(address, '1'))
            <> 25 - octet_length(ltrim(bytes, '\x00'::bytea)) then
        perform chain.refuse(format('invalid address "%s": its base58 does not decode to 25 bytes', address));
    elsif substr(bytes, 22) <> substr(sha256(sha256(substr(bytes, 1, 21))), 1, 4) then
        perform chain.refuse(format('invalid address "%s": wrong base58 checksum', address));
    end if;
    return substr(bytes, 1, 21);
end
$$;
comment on function chain.decode_base58check(text) is 'Version byte and 20-byte hash of a base58check address.';

create or replace function chain.decode_segwit(address text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    charset constant text := 'qpzry9x8gf2tvdw0s3jn54khce6mua7l';
    lowered text := lower(address);
    separator integer := strpos(lowered, '1');
    size integer := char_length(lowered);
    state integer := chain.bech32_start(left(lowered, separator - 1));
    quintet integer;
    version integer;
    buffer integer := 0;
    bits integer := 0;
    program bytea := '';
    reason text;
begin
    -- The shortest program has 2 bytes, 4 characters; BIP173 allows 90 characters in all.
    if size > 90 or size < separator + 11 then
        perform chain.refuse(format('invalid address "%s": %s characters, expected %s to 90',
            left(address, 100), size, separator + 11));
    elsif address <> lowered and address <> upper(address) then
        perform chain.refuse(format('invalid address "%s": mixed upper and lower case', address));
    end if;
    for at in separator + 1 .. size loop
        quintet := strpos(charset, substr(lowered, at, 1)) - 1;
        if quintet < 0 then
            perform chain.refuse(format('invalid address "%s": "%s" is no bech32 character',
                address, substr(address, at, 1)));
        end if;
        state := chain.bech32_step(state, quintet);
        if version is null then
            version := quintet;
        elsif at <= size - 6 then
            buffer := (buffer << 5 | quintet) & 4095;
            bits := bits + 5;
            if bits >= 8 then
                bits := bits - 8;
                program := program || set_byte('\x00'::bytea, 0, buffer >> bits & 255);
            end if;
        end if;
    end loop;
    reason := case
        when state not in (1, 734539939) then 'wrong bech32 checksum'
        when version > 16 then format('unknown witness version %s, expected 0 to 16', version)
        when version = 0 and state <> 1 then 'witness version 0 has a bech32m checksum, expected bech32 (BIP173)'
        when version > 0 and state = 1
            then format('witness version %s has a bech32 checksum, expected bech32m (BIP350)', version)
        when bits >= 5 or buffer & ((1 << bits) - 1) <> 0 then 'its last bits are no whole byte and not zero'
        when octet_length(program) not between 2 and 40
            then format('witness program of %s bytes, expected 2 to 40', octet_length(program))
        when version = 0 and octet_length(program) not in (20, 32)
            then format('witness program of %s bytes, expected 20 or 32 for version 0', octet_length(program))
    end;
    if reason is not null then
        perform chain.refuse(format('invalid address "%s": %s', address, reason));
    end if;
    return set_byte(set_byte('\x0000'::bytea, 0, case version when 0 then 0 else 80 + version end),
        1, octet_length(program)) || program;
end
$$;
comment on function chain.decode_segwit(text) is 'scriptPubKey of a bech32 or bech32m address that begins with bc1, tb1 or bcrt1.';

create or replace function chain.address_script(address text) returns bytea
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    payload bytea;
begin
    if address ~* '^(bc|tb|bcrt)1' then
        return chain.decode_segwit(address);
    elsif address !~ '^[1-9A-HJ-NP-Za-km-z]+$' then
        perform chain.refuse(format('invalid address "%s": expected base58, or bech32 beginning with bc1, tb1 or bcrt1',
            left(address, 100)));
    end if;
    payload := chain.decode_base58check(address);
    case get_byte(payload, 0)
        when 0, 111 then return '\x76a914'::bytea || substr(payload, 2) || '\x88ac'::bytea;
        when 5, 196 then return '\xa914'::bytea || substr(payload, 2) || '\x87'::bytea;
        else perform chain.refuse(format('invalid address "%s": unknown version byte %s, expected 0, 5, 111 or 196',
            address, get_byte(payload, 0)));
    end case;
end
$$;
comment on function chain.address_script(text) is 'scriptPubKey of an address of any network (base58check, bech32, bech32m); an error that says what is wrong with one that is not valid.';

create or replace function chain.address_networks(address text) returns text[]
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    script bytea := chain.address_script(address);
begin
    return case
        when address ~* '^bc1' then '{main}'
        when address ~* '^tb1' then '{test,testnet4,signet}'
        when address ~* '^bcrt1' then '{regtest}'
        when get_byte(chain.decode_base58check(address), 0) in (0, 5) then '{main}'
        else '{test,testnet4,signet,regtest}'
    end;
end
$$;
comment on function chain.address_networks(text) is 'The networks where an address is valid: test, testnet4 and signet share theirs, regtest shares the base58 ones.';

create or replace function chain.address_script_hash(address text) returns uuid
language plpgsql stable strict parallel safe set search_path = pg_catalog as $$
begin
    if not chain.network() = any (chain.address_networks(address)) then
        perform chain.refuse(format('address "%s" belongs to network %s, this database holds %s', address,
            array_to_string(chain.address_networks(address), ', '), chain.network()));
    end if;
    return chain.script_hash(chain.address_script(address));
end
$$;
comment on function chain.address_script_hash(text) is 'script_hash of an address of this database''s network; an error for one of another network.';

-- Transactions

create or replace function chain.compact_size_at(bytes bytea, start integer) returns bigint
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    first_byte integer := case when start < octet_length(bytes) then get_byte(bytes, start) end;
    size integer := case when first_byte < 253 then 1 else 1 + (1 << first_byte - 252) end;
    value bigint := 0;
begin
    if first_byte is null or start + size > octet_length(bytes) then
        perform chain.refuse(format('invalid compact size at byte %s: the %s bytes end before it does',
            start, octet_length(bytes)));
    elsif size = 1 then
        return first_byte;
    end if;
    for at in reverse start + size - 1 .. start + 1 loop
        value := value << 8 | get_byte(bytes, at);
    end loop;
    return value;
end
$$;
comment on function chain.compact_size_at(bytea, integer) is 'The count that stands at byte `start` (from 0) in the consensus encoding.';

create or replace function chain.witness_items(witness bytea) returns bytea[]
language plpgsql immutable strict parallel safe set search_path = pg_catalog as $$
declare
    bytes bytea := witness || ''::bytea; -- unpacked once, not for every item
    size integer := octet_length(witness);
    at integer := 0;
    item_count bigint := 0;
    item_size bigint;
    items bytea[] := '{}';
begin
    if size > 0 then
        item_count := chain.compact_size_at(bytes, 0);
        if item_count >= size then -- an item takes a byte at least
            perform chain.refuse(format('invalid witness: %s items in %s bytes', item_count, size));
        end if;
        at := octet_length(chain.compact_size(item_count));
    end if;
    for item in 1 .. item_count loop
        item_size := chain.compact_size_at(bytes, at);
        at := at + octet_length(chain.compact_size(item_size));
        if item_size > size - at then
            perform chain.refuse(format('invalid witness: item %s of %s has %s bytes, %s are left',
                item, item_count, item_size, size - at));
        end if;
        items := items || substr(bytes, at + 1, item_size::integer);
        at := at + item_size::integer;
    end loop;
    if at <> size then
        perform chain.refuse(format('invalid witness: %s bytes after its last item', size - at));
    end if;
    return items;
end
$$;
comment on function chain.witness_items(bytea) is 'The items of a witness in its consensus encoding, bottom of the stack first; no item where the input has no witness.';

create or replace function chain.raw_transaction(tx_num bigint) returns bytea
language plpgsql stable strict parallel safe set search_path = pg_catalog as $$
declare
    tx record;
    ins record;
    outs record;
begin
    select t.version, t.locktime, t.input_count, t.output_count into tx
        from chain.transactions t where t.tx_num = raw_transaction.tx_num;
    if not found then
        return null;
    end if;
    select count(i.script_sig) as script_sigs, count(i.witness) as witnesses, count(*) as rows,
            count(*) filter (where i.prev_tx_num is not null and p.txid is null) as lost,
            bool_or(octet_length(i.witness) > 0) as has_witness,
            string_agg(
                case when i.prev_tx_num is null then decode(repeat('00', 32), 'hex') else p.txid end
                    || chain.le_bytes(case when i.prev_tx_num is null then 4294967295 else i.prev_vout::bigint end, 4)
                    || chain.compact_size(octet_length(i.script_sig)) || i.script_sig || chain.le_bytes(i.sequence, 4),
                ''::bytea order by i.vin) as bytes,
            string_agg(case octet_length(i.witness) when 0 then '\x00'::bytea else i.witness end, ''::bytea order by i.vin)
                as witness
        into ins
        from chain.inputs i left join chain.transactions p on p.tx_num = i.prev_tx_num
        where i.tx_num = raw_transaction.tx_num;
    select count(*) as rows,
            string_agg(chain.le_bytes(o.value, 8) || chain.compact_size(octet_length(o.script)) || o.script,
                ''::bytea order by o.vout) as bytes
        into outs
        from chain.outputs o where o.tx_num = raw_transaction.tx_num;
    if ins.script_sigs < ins.rows or ins.witnesses < ins.rows then
        raise exception 'the bytes of transaction % are not in this database', tx_num
            using errcode = 'object_not_in_prerequisite_state',
            detail = format('Its %s is NULL.',
                case when ins.script_sigs < ins.rows then 'script_sig' else 'witness' end),
            hint = 'The chain was stored with script_sig = none or witness = none in the configuration''s section [store].';
    elsif ins.rows <> tx.input_count or outs.rows <> tx.output_count or ins.lost > 0 then
        raise exception 'transaction % is not whole: % of % inputs, % of % outputs, % previous transactions missing',
            tx_num, ins.rows, tx.input_count, outs.rows, tx.output_count, ins.lost using errcode = 'data_corrupted';
    end if;
    return chain.le_bytes(tx.version, 4)
        || case when ins.has_witness then '\x0001' else '' end::bytea
        || chain.compact_size(ins.rows) || ins.bytes
        || chain.compact_size(outs.rows) || outs.bytes
        || case when ins.has_witness then ins.witness else '' end::bytea
        || chain.le_bytes(tx.locktime, 4);
end
$$;
comment on function chain.raw_transaction(bigint) is 'A transaction in its exact consensus serialisation, witness included, rebuilt from the tables; NULL for an unknown tx_num. An error where script_sig or witness were not stored.';

create or replace function chain.wtxid(tx_num bigint) returns bytea
language sql stable strict parallel safe
return sha256(sha256(chain.raw_transaction(tx_num)));
comment on function chain.wtxid(bigint) is 'Hash of a transaction with its witness, 32 bytes, internal byte order; of a coinbase its real hash, not the zeros that stand for it in the witness commitment.';
