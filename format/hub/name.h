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

/// "org/name" or "org/name@revision", with "main" where none is given. nullopt: not of that form.
[[nodiscard]] std::optional<HubName> parse_hub_name(std::string_view text);

/// "org/name" of a repository that is to be written, also as it is pasted (below), in the Hub's own rule for names.
/// Errors: invalid, with what is allowed.
[[nodiscard]] Result<std::string> parse_repository_name(std::string_view text);

/// What people paste for a name: an address of a page or file at huggingface.co, hf.co or `endpoint`, with or without
/// "https://" (org/name, org/name/tree/REVISION, org/name/blob/REVISION/FILE, ...), and "hf://models/org/name".
/// nullopt: none of these, or no whole repository of a model (a folder of one, a data set).
[[nodiscard]] std::optional<HubName> pasted_hub_name(std::string_view text, std::string_view endpoint);
/// Whether a text is an address at huggingface.co or hf.co, whatever it names there.
[[nodiscard]] bool is_hub_address(std::string_view text);

/// Whether a revision is the whole id of a commit, which never means another: 40 hexadecimal digits, or 64 where a
/// repository counts with SHA-256.
[[nodiscard]] bool is_commit(std::string_view revision);
/// Whether it could be an id that a server calls a commit: 7 to 64 hexadecimal digits.
[[nodiscard]] bool is_commit_id(std::string_view text);

/// For people: "https://huggingface.co/org/name"
[[nodiscard]] std::string hub_page_url(std::string_view endpoint, std::string_view repository);
/// Of a file: ".../org/name/resolve/revision/path".
[[nodiscard]] std::string hub_file_url(std::string_view endpoint, const HubName& name, std::string_view path);
/// Of the API: ".../api/models/org/name/what/revision".
[[nodiscard]] std::string hub_api_url(std::string_view endpoint, const HubName& name, std::string_view what);

/// A Hub behind another endpoint (a mirror, a proxy) may name addresses at https://huggingface.co: they are meant for
/// the endpoint.
[[nodiscard]] std::string at_endpoint(const std::string& url, const std::string& endpoint);

/// The repository in the path of a file's URL at `endpoint`; nullopt: it is none. So a redirect tells a new name.
[[nodiscard]] std::optional<std::string> repository_of_url(std::string_view endpoint, std::string_view url);

}  // namespace dspack::format
