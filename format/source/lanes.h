// One long range over several connections: pieces are fetched side by side and handed on in order.
// Threads: one call at a time per sink; the ByteSource is read from several threads. Memory: one piece of kPieceBytes a
// connection and one more; none while a single connection is used.
// Errors: those of the source, and whatever the sink returns.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

/// Long against a round trip, short enough to hold one for each connection.
inline constexpr uint64_t kPieceBytes = 4ULL << 20;

/// How many connections the transfer may use now. Asked again and again: others that end leave theirs to it.
using LaneCount = std::function<unsigned()>;

/// As ByteSource::stream. One connection streams the whole range as long as `lanes` says 1.
[[nodiscard]] Result<void> stream_in_lanes(ByteSource& source, ByteRange range, const LaneCount& lanes,
                                           const ByteSink& sink, const std::stop_token& stop);

}  // namespace dspack::format
