#include "reshard/repair/repair_unfinished.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "format/record_log.h"
#include "reshard/repair/ways.h"
#include "reshard/run_state.h"

namespace dspack::reshard {
namespace {

using format::Path;

constexpr uint64_t kMaxJournalBytes = 512ULL << 20;

/// The lines that read, but for records of shards that are to be read once more. A torn tail goes too.
std::string sound_lines(std::string_view text, const std::set<uint64_t>& again) {
  std::string kept;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    bool wanted = false;
    const auto take = [&](const format::Json& record) -> Result<void> {
      const auto shard = format::json_uint(record, "shard");
      wanted = !shard || !again.contains(*shard);
      return {};
    };
    const format::RecordScan scan = format::scan_records(line, take);
    if (scan.valid_bytes == line.size() && wanted) kept += line;
  }
  return kept;
}

Result<void> rewrite(const Path& journal, const std::set<uint64_t>& again, format::FileSystem& files) {
  auto text = read_text(files, journal, kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return {};
  if (!text) return text.error();
  const std::string kept = sound_lines(*text, again);
  if (kept.empty()) return {};  // nothing was recorded yet
  // Without its first record nobody knows whose work it is.
  const bool has_head = text->starts_with(kept.substr(0, kept.find('\n') + 1));
  if (!has_head) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: its first record, which says what was begun here, is damaged; remove this file and "
                             "give the command again that began the work (finished files are read anew)",
                             journal.string())};
  }
  return kept == *text ? Result<void>() : format::write_sealed(files, journal, kept);
}

/// Shards of which scales were read once by themselves and once with the others, and differently: one of the two has
/// come damaged, and which is not known.
std::set<uint64_t> doubtful_shards(const Plan& plan, const format::Checkpoint& source, const JournalState& done) {
  std::map<uint32_t, format::Digest> streamed;
  for (const auto& [shard, record] : done.shards) {
    for (size_t i = 0; i < record.tensors.size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      if (copy.conversion == Conversion::none) streamed[copy.tensor] = record.tensors[i].whole;
    }
  }
  std::set<uint64_t> doubtful;
  for (const auto& [shard, record] : done.shards) {
    for (size_t i = 0; i < record.tensors.size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      const auto scales = copy.scales ? streamed.find(*copy.scales) : streamed.end();
      if (scales == streamed.end() || record.tensors[i].scales == scales->second) continue;
      doubtful.insert(shard);
      doubtful.insert(source.tensors()[*copy.scales].file);
    }
  }
  return doubtful;
}

Result<void> check_no_parts(const Path& out, format::FileSystem& files) {
  const Path parts = work_mark(out, WorkKind::parts);
  TRY_ASSIGN(const auto there, files.stat(parts));
  if (!there) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: holds parts of a repack; where one has lost files, remove its folder below {} and give "
                           "its command again (the other parts stay)",
                           out.string(), parts.string())};
}

}  // namespace

Result<RepairReport> repair_unfinished(const RepackOutlook& outlook, format::Repository& repository,
                                       const RepackOptions& options, Scrutiny scrutiny, format::FileSystem& files,
                                       format::Progress& progress, const std::stop_token& stop) {
  TRY(check_no_parts(options.out, files));
  TRY_ASSIGN(const auto lock, lock_work_folder(options.out, format::LockKind::exclusive, files));
  const RunScope scope = whole_scope(outlook.plan, options.out);
  const format::Json identity = run_identity(outlook, repository);
  TRY(rewrite(journal_path(scope), {}, files));
  TRY_ASSIGN(JournalLoaded loaded, load_journal(scope, identity, outlook.plan, files));
  if (const auto again = doubtful_shards(outlook.plan, outlook.source, loaded.state); !again.empty()) {
    TRY(rewrite(journal_path(scope), again, files));
    TRY_ASSIGN(loaded, load_journal(scope, identity, outlook.plan, files));
  }
  const WantedFiles wanted = wanted_by_journal(outlook.plan, loaded.state, options.out);
  TRY_ASSIGN(const std::vector<FileDamage> damage, find_damage(wanted, scrutiny, options.jobs, files, progress, stop));
  TRY(check_room(wanted, damage, files));
  RepairReport report{.checked_files = loaded.state.files.size(), .damaged_files = damage.size()};
  TRY_ASSIGN(const Plan ways, ways_from_source(outlook.plan, wanted, damage, repository.description()));
  TRY(mend_files(wanted, damage, ways, outlook.source, &repository, options.jobs, files, report, progress, stop));
  TRY(complete_run(outlook, repository, options, files, progress, stop));
  return report;
}

}  // namespace dspack::reshard
