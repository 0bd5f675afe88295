// The name of a repository on the Hugging Face Hub, and the addresses derived from it.
// Threads: thread-safe (pure functions). Source: huggingface_hub, constants.py and file_download.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::format {

inline constexpr char kDefaultRevision[] = "main";

struct HubName {
  std::string repository;  // "org/name"
  std::string revision;    // branch, tag, refs/pr/N, or a commit
};

/// "org/name" or "org/name@revision", with "main" as the default. nullopt: not of that form.
[[nodiscard]] std::optional<HubName> parse_hub_name(std::string_view text);

/// "org/name" of a repository to write to, also in the pasted forms below, by the Hub's rules for names. Errors:
/// invalid, with what is allowed.
[[nodiscard]] Result<std::string> parse_repository_name(std::string_view text);

/// A name as people paste it: the address of a page or file at huggingface.co, hf.co or `endpoint`, with or without
/// "https://" (org/name, org/name/tree/REVISION, org/name/blob/REVISION/FILE, ...), or "hf://models/org/name". nullopt:
/// none of these, or not a whole model repository (a folder of one, a data set).
[[nodiscard]] std::optional<HubName> pasted_hub_name(std::string_view text, std::string_view endpoint);
/// Whether a text is an address at huggingface.co or hf.co, whatever it names.
[[nodiscard]] bool is_hub_address(std::string_view text);

/// Whether a revision is a full commit id, whose meaning never changes: 40 hexadecimal digits, or 64 if the repository
/// uses SHA-256.
[[nodiscard]] bool is_commit(std::string_view revision);
/// Whether a text can be a commit id as servers write it: 7 to 64 hexadecimal digits.
[[nodiscard]] bool is_commit_id(std::string_view text);

/// For people: "https://huggingface.co/org/name"
[[nodiscard]] std::string hub_page_url(std::string_view endpoint, std::string_view repository);
/// A file's URL: ".../org/name/resolve/revision/path".
[[nodiscard]] std::string hub_file_url(std::string_view endpoint, const HubName& name, std::string_view path);
/// An API URL: ".../api/models/org/name/what/revision".
[[nodiscard]] std::string hub_api_url(std::string_view endpoint, const HubName& name, std::string_view what);

/// Replaces https://huggingface.co in an address by `endpoint`: a mirror or proxy may pass on the Hub's own addresses.
[[nodiscard]] std::string at_endpoint(const std::string& url, const std::string& endpoint);

/// The repository in a file's URL at `endpoint`, such as a redirect to a new name; nullopt: not such a URL.
[[nodiscard]] std::optional<std::string> repository_of_url(std::string_view endpoint, std::string_view url);

}  // namespace dspack::format
