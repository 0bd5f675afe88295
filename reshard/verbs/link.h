// `reshard link`: a flat folder of symbolic links into a packed repository, which loaders that only look at the top of
// a folder (vLLM, SGLang) open as an ordinary checkpoint. Their rules: docs/link.md.
// Threads: called from one thread; two runs with the same folder exclude each other. Lifetime: plain values.
// Errors: unsupported (a repository that other loaders cannot read, a file system without links), conflict (a folder
// that holds anything else, two files that would have the same name), not_found, corrupt (the repository lacks a file),
// invalid, io.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/checkpoint.h"
#include "format/file_system.h"

namespace dspack::reshard {

/// The contents of the folder.
struct LinkPlan {
  std::map<std::string, std::string> links;  // path in the folder -> path in the packed repository
  size_t weights = 0;                        // number of links to weight files
  std::string index;                         // index of the tensors, with the names in the folder
  std::vector<std::string> warnings;
};

/// The name of a packed weight file in the flat folder: its path below model/ with "-" for "/", prefixed with "model-"
/// unless it starts so. So it is never model.safetensors, which transformers would treat as the whole model, nor
/// consolidated*.safetensors, by which vLLM recognises another format.
[[nodiscard]] std::string flat_name(std::string_view path);

/// Weights by their flat names, other files by their names in the source. The manifest, the model card and the kept
/// headers belong to the packed repository only and are not linked. Pure.
[[nodiscard]] Result<LinkPlan> plan_links(const format::Checkpoint& packed);

enum class LinkOutcome { made, updated, already_there };

/// Makes `flat` according to the plan, with relative links, so that both folders can move together. The folder appears
/// complete, by a rename. An unchanged earlier result of this function is replaced; any other non-empty folder is
/// refused.
[[nodiscard]] Result<LinkOutcome> make_links(const LinkPlan& plan, const format::Path& packed, const format::Path& flat,
                                             format::FileSystem& files);

/// Checks that every file that the plan links to exists with the size in the manifest.
[[nodiscard]] Result<void> check_present(const LinkPlan& plan, const format::Manifest& manifest,
                                         const format::Path& packed, format::FileSystem& files);

/// The folder's record of how it was made; loaders ignore this name.
inline constexpr char kLinkRecord[] = ".reshard-link.json";

}  // namespace dspack::reshard
