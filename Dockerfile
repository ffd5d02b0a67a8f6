# syntax=docker/dockerfile:1
# Satgres in a container: the service alone, for a PostgreSQL beside it (docker-compose.yml), or with the server's programs
# for one that it starts itself (target `private`).
#
#   docker build --tag satgres .
#   docker build --tag satgres:private --target private .

FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# What cargo fetched and built stays between builds.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin satgres && cp target/release/satgres /usr/local/bin/satgres

# Anybody may write into the data directory, and a volume takes over this mode: the container runs as whoever may read the
# block files.
FROM debian:bookworm-slim AS service
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 8333 --no-create-home --home-dir /var/lib/satgres satgres \
    && mkdir --mode 1777 /var/lib/satgres
COPY --from=build /usr/local/bin/satgres /usr/local/bin/satgres
USER satgres
ENV SATGRES_DATA_DIR=/var/lib/satgres SATGRES_BLOCKS_DIR=/blocks
# The files of the UTXO set, and with a private PostgreSQL the database.
VOLUME /var/lib/satgres
# `run` ends what it is doing within seconds of this signal.
STOPSIGNAL SIGTERM
# Fails when the service is dead or silent; while it waits for its database it is alive.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s CMD ["satgres", "status", "--check"]
ENTRYPOINT ["satgres"]
CMD ["run"]

FROM service AS private
USER root
RUN apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-common \
    && echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf \
    && apt-get install --yes --no-install-recommends postgresql-15 \
    && rm -rf /var/lib/apt/lists/*
USER satgres

# What is made without --target.
FROM service
