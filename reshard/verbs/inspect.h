// `reshard inspect SOURCE`: describes a checkpoint for people, line by line for programs, or with `--html FILE` as one
// self-contained page: a map of layers by experts, totals, and where each expert's bytes lie before and after packing.
// Threads: called from one thread. Errors: as the repository; invalid (a grouping for a packed repository), unsupported
// (sizes beyond a page's numbers).
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

/// One JSON object per line and tensor: name, dtype, shape, url or file, range [begin, end) in that file.
[[nodiscard]] std::string inspect_json(const format::Checkpoint& checkpoint, const format::Repository& repository);

/// The page. `by`: how an ordinary checkpoint would be packed; must be unset for a packed one, whose kept headers
/// describe its arrangement before packing. If these are not available, the page gives the reason and shows the rest.
[[nodiscard]] Result<std::string> inspect_html(const format::Checkpoint& checkpoint, format::Repository& repository,
                                               const std::optional<format::Grouping>& by, const std::stop_token& stop);

/// Puts JSON into the page's frame. Text from outside occurs only in the JSON, where it cannot close the enclosing
/// element; the page's policy runs no script but its own.
[[nodiscard]] std::string page_around(const format::Json& data);

/// The parts of the page, from reshard/verbs/inspect_page/; the build turns them into constants (cmake/embed.cmake).
/// The frame has "{{name}}" where another part is inserted.
extern const std::string_view kPageFrame;
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dspack::reshard
