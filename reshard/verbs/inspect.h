// `reshard inspect SOURCE`: what a checkpoint holds, for people, line by line for programs, or with `--html FILE` as
// one page that needs nothing else: a map of layers by experts, totals, and where each expert's bytes lie before and
// after packing. Threads: called from one thread. Errors: as the repository; unsupported (sizes beyond a page's
// numbers).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/checkpoint.h"
#include "format/json.h"
#include "format/packing/grouping.h"

namespace dspack::reshard {

/// Totals by role and by layer, and the layer map if there is one.
[[nodiscard]] std::string inspect_text(const format::Checkpoint& checkpoint, const format::Repository& repository);

/// One JSON object a line and tensor: name, dtype, shape, url or file, range [begin, end) in that file.
[[nodiscard]] std::string inspect_json(const format::Checkpoint& checkpoint, const format::Repository& repository);

/// The page. `by`: how an ordinary checkpoint would be packed; of a packed one, which must lack it, the source shards'
/// kept headers tell how it lay before. Where they cannot be had the page says why, and shows what is there.
[[nodiscard]] Result<std::string> inspect_html(const format::Checkpoint& checkpoint, format::Repository& repository,
                                               const std::optional<format::Grouping>& by, const std::stop_token& stop);

/// Puts JSON into the page's frame. Text from outside stands in the JSON alone, where none of it can end the element
/// that holds it; the policy in the page lets no script run but its own.
[[nodiscard]] std::string page_around(const format::Json& data);

/// The parts of the page, as they stand in reshard/verbs/inspect_page/; the build makes them constants
/// (cmake/embed.cmake). The frame has "{{name}}" where the other parts belong.
extern const std::string_view kPageFrame;
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dspack::reshard
