// `reshard verify`: checks digests, then on request compares with the source's bytes or with declarations about them.
#include <algorithm>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/verbs/verify.h"
#include "reshard/verbs/verify_source.h"

namespace dspack::reshard {
namespace {

struct VerifyFlags {
  NetworkFlags network;
  std::string folder;
  std::string source;                   // empty: no comparison
  std::optional<std::string> upstream;  // place whose declarations to compare with; empty: where it was packed from
  std::string checksum_list;            // a file written by sha256sum; empty: none
  unsigned jobs = 4;
};

using format::human_bytes;
using format::print_error;
using format::print_line;
using format::print_out;

/// Advice for damaged files. Only a local folder can be repaired.
std::string damage_remedy(const std::string& folder, const format::Repository& packed) {
  if (packed.kind() != format::RepositoryKind::local) return "replace the named files";
  return fmt::format("reshard repair {} fetches lost or damaged files again", folder);
}

// The files are as they were sealed, but were packed from something else.
constexpr char kOtherSourceRemedy[] = "pack that source again, or name the one that was packed";

/// Prints the findings, or `clean` if there are none. Returns the exit status.
int report_findings(const std::string& folder, const std::vector<std::string>& findings, const std::string& clean,
                    const std::string& remedy) {
  for (const std::string& finding : findings)
    print_line(finding);
  if (findings.empty()) {
    print_out(fmt::format("{}: {}\n", folder, clean));
    return 0;
  }
  const std::string count = findings.size() == 1 ? "1 difference" : fmt::format("{} differences", findings.size());
  print_error(fmt::format("reshard: {}: {} found; {}", folder, count, remedy));
  return 1;
}

int report(const std::string& folder, const VerifyReport& verified, std::string_view what, const std::string& remedy) {
  std::string clean =
      fmt::format("{}: {} files, {} tensors, {}", what, verified.files, verified.tensors, human_bytes(verified.bytes));
  if (verified.companions != 0) clean += fmt::format(", {} other files", verified.companions);
  return report_findings(folder, verified.findings, clean, remedy);
}

/// `known`: findings already printed, ascending; they are not printed again.
int report_upstream(const std::string& folder, const UpstreamReport& upstream,
                    const std::vector<Declarations>& declared, const std::vector<std::string>& known) {
  for (const std::string& line : upstream.shards)
    print_line(line);
  std::vector<std::string> findings;
  std::set_difference(upstream.findings.begin(), upstream.findings.end(), known.begin(), known.end(),
                      std::back_inserter(findings));
  if (findings.empty() && !upstream.findings.empty()) return 1;
  std::string names = brief(declared.front().by);
  for (size_t i = 1; i < declared.size(); ++i)
    names += " and " + brief(declared[i].by);
  return report_findings(folder, findings,
                         fmt::format("{} source shards ({}) are rebuilt from the packed bytes as {} declares",
                                     upstream.shards.size(), human_bytes(upstream.bytes), names),
                         kOtherSourceRemedy);
}

/// All declarations that the user asked to compare with. Read first: without them nothing can be verified.
Result<std::vector<Declarations>> read_declarations(const VerifyFlags& flags, const format::Manifest& manifest,
                                                    const Context& context) {
  std::vector<Declarations> declared;
  if (flags.upstream) {
    std::string place = *flags.upstream;
    if (place.empty()) {
      auto origin = origin_place(manifest);
      if (!origin) return origin.error().in(flags.folder);
      place = *origin;
    }
    TRY_ASSIGN(const auto source, open_repository(place, context.remote, format::posix_file_system(), context.stop));
    TRY_ASSIGN(Declarations of_source, declarations_of(*source, manifest, flags.jobs, context.stop));
    declared.push_back(std::move(of_source));
  }
  if (!flags.checksum_list.empty()) {
    TRY_ASSIGN(Declarations listed, read_checksum_list(flags.checksum_list));
    declared.push_back(std::move(listed));
  }
  return declared;
}

Result<int> run_verify(const VerifyFlags& flags, format::Process& process) {
  const Context context = make_context(process, flags.network);
  TRY_ASSIGN(const Opened packed, open_packed(flags.folder, flags.jobs, context));
  if (flags.upstream || !flags.checksum_list.empty())
    TRY(check_rebuildable(*packed.repository, *packed.checkpoint.manifest()));
  TRY_ASSIGN(const auto declared, read_declarations(flags, *packed.checkpoint.manifest(), context));
  TRY_ASSIGN(const VerifyReport digests,
             verify_digests(*packed.repository, packed.checkpoint, flags.jobs, context.progress, context.stop));
  int status = report(flags.folder, digests, "every digest fits", damage_remedy(flags.folder, *packed.repository));
  if (!declared.empty()) {
    TRY_ASSIGN(const UpstreamReport upstream, verify_upstream(*packed.repository, packed.checkpoint, declared,
                                                              flags.jobs, context.progress, context.stop));
    status = std::max(status, report_upstream(flags.folder, upstream, declared, digests.findings));
  }
  if (flags.source.empty()) return status;
  TRY_ASSIGN(const Opened source, open_place(flags.source, flags.jobs, context));
  TRY_ASSIGN(const VerifyReport bytes,
             verify_against_source(*packed.repository, packed.checkpoint, *source.repository, source.checkpoint,
                                   flags.jobs, context.progress, context.stop));
  const bool plain = holds_source_bytes(*packed.checkpoint.manifest());
  return std::max(status, report(flags.folder, bytes,
                                 plain ? "equal to the source, byte for byte"
                                       : "equal to what its recipe makes of the source, byte for byte",
                                 kOtherSourceRemedy));
}

void add_verify_options(format::OptionTable& table, VerifyFlags& flags) {
  table.add("DIR", "", flags.folder, "Packed repository").required();
  table.add("--source", "SOURCE", flags.source, "Compare every tensor with this checkpoint too, byte for byte");
  table.maybe_valued("--upstream", "[SOURCE]", flags.upstream,
                     "Rebuild each source shard's SHA-256 from the packed bytes and compare it with what SOURCE "
                     "declares, reading none of its bytes: the LFS digests of a repository on the Hub, or the file "
                     "SHA256SUMS of a folder. Default: where the repository was packed from");
  table.add("--sha256", "FILE", flags.checksum_list, "The same against a list that sha256sum wrote: \"hex  path\"");
  add_jobs(table, flags.jobs, "Files read at a time");
  add_network_options(table, flags.network);
  table.footer("Exit status: 0 everything matches, 1 something differs (named on stdout) or could not be checked.");
}

}  // namespace

format::Verb verify_verb() {
  return format::make_verb("verify", "Check every digest of a packed repository", add_verify_options, run_verify);
}

}  // namespace dspack::reshard
