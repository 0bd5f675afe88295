// One long range over as many connections as there are to spare: pieces are fetched side by side and handed on in
// order. Threads: one call at a time per sink; the ByteSource is read from several threads. Memory: one piece a
// connection and one more; none while a single connection is used. Errors: those of the source, and whatever the sink
// returns.
#pragma once

#include "format/http/connections.h"
#include "format/source/repository.h"

namespace dspack::format {

/// What a connection fetches at a time, beside others: long against a round trip, short enough to hold one for each.
/// Always a multiple of this unit, by which no compressed frame is cut in two.
inline constexpr uint64_t kPieceUnit = 1ULL << 20;
inline constexpr uint64_t kPieceBytes = 4 * kPieceUnit;

/// As ByteSource::stream. The caller holds the permit for one connection; while no further one is to be had, that one
/// streams the whole range. Precondition: piece_bytes is a multiple of kPieceUnit, and not 0.
[[nodiscard]] Result<void> stream_in_parallel(ByteSource& source, ByteRange range, Connections& connections,
                                              uint64_t piece_bytes, const ByteSink& sink, const std::stop_token& stop);

}  // namespace dspack::format
