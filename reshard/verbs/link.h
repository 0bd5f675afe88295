// `reshard link`: a flat folder of symbolic links over a packed repository, which loaders that look at the top of a
// folder alone (vLLM, SGLang) open as an ordinary checkpoint, from the same bytes. docs/link.md names their rules.
// Threads: called from one thread; two runs with the same folder exclude each other. Lifetime: plain values.
// Errors: unsupported (what other loaders cannot read, a file system without links), conflict (a folder that holds
// anything else, two files that would have one name), not_found, corrupt (the repository lacks a file), invalid, io.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/checkpoint.h"
#include "format/file_system.h"

namespace dspack::reshard {

/// What the folder is to hold.
struct LinkPlan {
  std::map<std::string, std::string> links;  // path in the folder -> path in the packed repository
  size_t weights = 0;                        // of them: files of tensors
  std::string index;                         // of the tensors, by the names in the folder
  std::vector<std::string> warnings;
};

/// The name of a packed file of weights in the flat folder: its path below model/ with "-" for "/", behind "model-".
/// So it is never model.safetensors, which transformers would take for the whole model, nor consolidated*.safetensors,
/// by which vLLM knows another format.
[[nodiscard]] std::string flat_name(std::string_view path);

/// Weights by their flat names, all other files by the names that they had in the source. The manifest, the model card
/// and the kept headers are of the packed repository alone and stay there. Pure.
[[nodiscard]] Result<LinkPlan> plan_links(const format::Checkpoint& packed);

enum class LinkOutcome { made, updated, already_there };

/// Makes `flat` so, with links relative to each other's place, so that both folders can move together. It comes into
/// being by a rename, whole. An earlier result of this function, unchanged, is replaced; any other folder with
/// something in it is refused.
[[nodiscard]] Result<LinkOutcome> make_links(const LinkPlan& plan, const format::Path& packed, const format::Path& flat,
                                             format::FileSystem& files);

/// Every file that the plan links to is there, with the size that the manifest has.
[[nodiscard]] Result<void> check_present(const LinkPlan& plan, const format::Manifest& manifest,
                                         const format::Path& packed, format::FileSystem& files);

/// What the folder itself keeps of how it was made; loaders look for other names.
inline constexpr char kLinkRecord[] = ".reshard-link.json";

}  // namespace dspack::reshard
