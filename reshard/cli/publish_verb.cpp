// `reshard publish`: its options and its output before, during and after the work.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/seconds.h"
#include "format/cli/child_process.h"
#include "format/cli/output.h"
#include "format/http/pace.h"
#include "format/hub/name.h"
#include "format/manifest.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/publish/publish.h"

namespace dspack::reshard {
namespace {

struct PublishFlags {
  NetworkFlags network;
  std::string folder;
  std::string repository;  // "org/name"
  std::string branch;      // empty: the default one
  bool only_private = false;
  bool create_pull_request = false;
  bool dry_run = false;
  bool check_only = false;
  bool with_hf = false;
  unsigned jobs = 4;

  Result<void> complete() const {
    if (with_hf && network.limit_rate != 0)
      return Error{ErrorKind::invalid,
                   "--limit-rate does not bound what `hf upload` sends: leave out one of --with-hf "
                   "and --limit-rate"};
    return {};
  }
};

using format::human_bytes;
using format::print_error;
using format::print_line;
using format::print_out;

constexpr char kHubClient[] = "hf";

// Above this, viewers refuse the index, and each file costs its readers a rate-limited request.
constexpr uint64_t kManyFiles = 10'000;

constexpr char kCardPath[] = "README.md";
constexpr uint64_t kMaxCardBytes = 16 << 20;

std::string counted(uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

/// The state of the server in words.
std::string there_words(const Situation& situation, const PublishTarget& target) {
  if (!situation.repository)
    return fmt::format("no such repository: it is created{}", target.only_private ? ", private" : "");
  if (!situation.branch) return fmt::format("no branch {}: it is created", target.branch);
  if (situation.on_branch) return "all of it";
  if (situation.pull_request) return fmt::format("pull request {} is resumed", situation.pull_request->number);
  if (situation.by_pull_request && !target.create_pull_request)
    return "another state: it is replaced through a pull request";
  return situation.by_pull_request ? "a pull request is opened" : "what is missing is added";
}

void print_outlook(const PublishOutlook& outlook, const std::string& from, const format::HubClient& hub,
                   const PublishTarget& target, const std::string& there, uint64_t limit_rate) {
  print_out(fmt::format("publish  {} to {} (branch {})\n", from, hub.page(), target.branch));
  print_out(fmt::format("there    {}\n", there));
  if (outlook.commits == 0) return;
  print_out(fmt::format("to send  {} of {}, {} of {}\n", outlook.files_to_send, counted(outlook.files, "file", "files"),
                        human_bytes(outlook.bytes_to_send), human_bytes(outlook.bytes)));
  if (outlook.files_to_delete != 0)
    print_out(fmt::format("to go    {} that the folder lacks\n", counted(outlook.files_to_delete, "file", "files")));
  print_out(fmt::format("commits  {}\n", outlook.commits));
  print_out(fmt::format("time     {}\n", transfer_words(outlook.bytes_to_send, limit_rate, "upload")));
}

void warn_of_many_files(uint64_t files, format::Progress& progress) {
  if (files <= kManyFiles) return;
  progress.note(format::NoteKind::warning,
                fmt::format("{} files: every one costs its readers a rate-limited request, and some viewers "
                            "refuse an index of more than {}; a repository made with --by layer has far fewer",
                            files, kManyFiles));
}

PublishTarget target_of(const PublishFlags& flags) {
  return {.branch = flags.branch.empty() ? format::kDefaultRevision : flags.branch,
          .create_pull_request = flags.create_pull_request,
          .only_private = flags.only_private};
}

/// Everything that the three modes of the verb need.
struct Publishing {
  const PublishFlags& flags;
  const Context& context;
  PublishTarget target;
  format::HubClient client;
  format::HubWriter hub;
  SealedFolder sealed;

  Publishing(const PublishFlags& the_flags, const Context& the_context, SealedFolder folder)
      : flags(the_flags),
        context(the_context),
        target(target_of(the_flags)),
        client(the_context.remote, the_flags.repository),
        hub(client),
        sealed(std::move(folder)) {}

  Result<Situation> look() {
    return find_situation(hub, target, sealed, format::posix_file_system(), flags.jobs, context.stop);
  }

  [[nodiscard]] uint64_t limit_rate() const {
    return context.remote.rate_limit ? context.remote.rate_limit->bytes_per_second() : 0;
  }

  /// Has the Hub's own client send what belongs to no last commit: it knows Xet, so chunks that the Hub has are not
  /// sent.
  Result<void> transfer(const std::string& revision) const {
    std::vector<std::string> command = {kHubClient,
                                        "upload",
                                        flags.repository,
                                        sealed.folder.string(),
                                        ".",
                                        "--revision",
                                        revision,
                                        "--commit-message",
                                        pull_request_title(sealed.manifest_sha256) + ": weights"};
    for (const LocalFile& file : sealed.files) {
      if (!is_sealing(file.path)) continue;
      command.emplace_back("--exclude");
      command.push_back(file.path);
    }
    for (const char* hidden : {".*", "*/.*"}) {  // what the manifest does not know
      command.emplace_back("--exclude");
      command.emplace_back(hidden);
    }
    TRY_ASSIGN(const int status, format::run_child(command, context.stop));
    if (status == 0) return {};
    return Error{ErrorKind::network,
                 fmt::format("`hf upload` ended with status {} (its reason is above); the same command "
                             "resumes, with --with-hf or without",
                             status)};
  }

  Result<void> check_card() {
    if (std::ranges::find(sealed.files, kCardPath, &LocalFile::path) == sealed.files.end()) return {};
    TRY_ASSIGN(const std::string card,
               format::read_text(format::posix_file_system(), sealed.folder / kCardPath, kMaxCardBytes));
    return hub.check_card(card, context.stop);
  }

  Result<int> dry_run() {
    Situation situation;
    situation.difference = compare(sealed.files, {});
    const std::string& kept_back = context.remote.hub_token_note;
    std::string there = "not asked: " + (kept_back.empty() ? "there is no token" : kept_back);
    if (!context.remote.hub_token.empty() && !context.remote.hub_offline) {
      auto asked = look();
      if (!asked && asked.error().kind == ErrorKind::cancelled) return asked.error();
      there = asked ? there_words(*asked, target) : "could not be asked: " + message_line(asked.error().message);
      if (asked) situation = std::move(*asked);
    }
    warn_of_many_files(sealed.files.size(), context.progress);
    print_outlook(publish_outlook(sealed, situation), flags.folder, client, target, there, limit_rate());
    if (!situation.difference.to_send.empty()) print_out(fmt::format("client   {}\n", client_words()));
    return 0;
  }

  Result<int> check() {
    TRY_ASSIGN(const format::Presence presence, hub.look(target.branch, context.stop));
    if (!presence.revision) {
      return Error{ErrorKind::not_found,
                   fmt::format("{}: {}", client.page(),
                               presence.repository ? fmt::format("has no branch {}", target.branch)
                                                   : "no such repository, or one that this token may not see")};
    }
    TRY_ASSIGN(const format::HubTree tree, hub.tree(target.branch, context.stop));
    TRY(name_blobs(sealed, tree, format::posix_file_system(), flags.jobs, context.stop));
    const ListingDifference difference = compare(sealed.files, tree);
    for (const std::string& finding : difference.findings)
      print_line(finding);
    if (!difference.none()) {
      print_error(fmt::format("reshard: {}: {} from {}; run reshard publish without --check to correct them",
                              client.page(), counted(difference.findings.size(), "difference", "differences"),
                              flags.folder));
      return 1;
    }
    print_equal(client.page());
    return 0;
  }

  Result<int> publish_it() {
    if (!context.remote.hub_token_note.empty()) return Error{ErrorKind::network, context.remote.hub_token_note};
    if (context.remote.hub_token.empty()) {
      return Error{ErrorKind::network,
                   "publishing needs a token with write access: set HF_TOKEN, or log in with `hf auth login`"};
    }
    if (flags.with_hf && !format::has_program(kHubClient)) {
      return Error{ErrorKind::not_found,
                   "--with-hf needs the Hub's own client, and PATH has no `hf`: pip install "
                   "huggingface_hub hf_xet, or leave --with-hf out"};
    }
    TRY_ASSIGN(Situation situation, look());
    TRY(check_digests(sealed, format::posix_file_system(), flags.jobs, context.progress, context.stop));
    if (!situation.complete(target)) TRY(check_card());
    warn_of_many_files(sealed.files.size(), context.progress);
    print_outlook(publish_outlook(sealed, situation), flags.folder, client, target, there_words(situation, target),
                  limit_rate());
    const auto begin = std::chrono::steady_clock::now();
    PublishJob job{hub, target, sealed, format::posix_file_system(), context.progress, flags.jobs, context.stop};
    bool by_hf = false;  // not where only files are missing that are sent as usual
    if (flags.with_hf) {
      job.transfer = [this, &by_hf](const std::string& revision) {
        by_hf = true;
        return transfer(revision);
      };
    }
    TRY_ASSIGN(const PublishOutcome outcome, publish(job, std::move(situation)));
    const double seconds = seconds_since(begin);
    if (!outcome.was_complete) print_done(outcome, seconds, by_hf);
    const bool waits = outcome.pull_request && !outcome.merged;
    print_equal(waits ? fmt::format("{}/discussions/{}", client.page(), *outcome.pull_request) : client.page());
    return 0;
  }

  /// Which client would send the weights.
  [[nodiscard]] std::string client_words() const {
    if (!flags.with_hf)
      return "reshard, whole files; --with-hf sends only chunks that the Hub lacks (Xet, which our tests have not "
             "tried): "
             "worth it if these weights are there in another form";
    return format::has_program(kHubClient) ? "hf upload: with hf_xet only chunks that the Hub lacks"
                                           : "hf upload, which PATH lacks: pip install huggingface_hub hf_xet";
  }

  void print_done(const PublishOutcome& outcome, double seconds, bool by_hf) const {
    const Sent& sent = outcome.sent;
    const double rate = static_cast<double>(sent.bytes) / std::max(seconds, 1e-9);
    if (by_hf) print_out("weights  by hf upload\n");
    print_out(fmt::format("sent     {} ({}) to the large file storage, {}; {}{}\n",
                          counted(sent.files, "file", "files"), human_bytes(sent.bytes),
                          counted(sent.commits, "commit", "commits"), duration_words(seconds),
                          sent.bytes == 0 ? "" : fmt::format(", {}/s", human_bytes(static_cast<uint64_t>(rate)))));
    if (!outcome.pull_request) return;
    print_out(fmt::format("{}: {}/discussions/{}\n",
                          outcome.merged ? "merged   pull request" : "opened   pull request, to be merged by others",
                          client.page(), *outcome.pull_request));
  }

  void print_equal(const std::string& where) const {
    print_out(fmt::format("{}: every path, size and digest is that of the manifest: {}, {}\n", where,
                          counted(sealed.files.size(), "file", "files"), human_bytes(sealed.total_bytes)));
  }
};

Result<int> run_publish(const PublishFlags& flags, format::Process& process) {
  format::ignore_broken_connections();
  const Context context = make_context(process, flags.network);
  TRY_ASSIGN(SealedFolder sealed, open_sealed(flags.folder, format::posix_file_system(), context.stop));
  Publishing publishing(flags, context, std::move(sealed));
  if (flags.dry_run) return publishing.dry_run();
  if (context.remote.hub_offline)
    return Error{ErrorKind::network, "publishing needs the Hub, but HF_HUB_OFFLINE is set; unset it"};
  if (flags.check_only) return publishing.check();
  return publishing.publish_it();
}

void add_publish_options(format::OptionTable& table, PublishFlags& flags) {
  table.add("DIR", "", flags.folder, "A sealed packed repository").required();
  table
      .add("--repo", "ORG/NAME", flags.repository, format::parse_repository_name,
           "Repository on the Hub; created if it does not exist")
      .required();
  auto only_private = table.flag("--private", flags.only_private, "Make it private; refuse one that is public");
  auto branch =
      table.add("--revision", "BRANCH", flags.branch, "A branch other than main; created if it does not exist");
  auto pull =
      table.flag("--create-pr", flags.create_pull_request, "Open a pull request with all of it, and do not merge it");
  pull.excludes(branch);
  auto dry_run = table.flag("--dry-run", flags.dry_run, "Print what would be done, and stop; needs no token");
  auto check = table.flag("--check", flags.check_only,
                          "Only compare the repository on the Hub with the manifest: every path, size and digest, no "
                          "bytes read");
  check.excludes(dry_run).excludes(only_private).excludes(pull);
  table
      .flag(
          "--with-hf", flags.with_hf,
          "Have the Hub's own client (`hf upload`) transfer the weights: with hf_xet it sends only the chunks that the "
          "Hub lacks. Manifest, index and card are sent as usual, and the result is compared")
      .excludes(check);
  add_jobs(table, flags.jobs, "Files read or sent at a time; bounds memory and connections");
  add_network_options(table, flags.network);
  table.footer(
      "Every file is first compared with its digest; a file that differs from what was sealed is not published. "
      "Manifest,\n"
      "index and card come last, so that readers never take an unfinished repository for a whole one. A repository "
      "that\n"
      "exists already is replaced through a pull request, which is merged last. After a kill or an interruption the "
      "same\n"
      "command resumes: it asks the Hub what it has.\n"
      "Exit status: 0 published (or equal), 1 failed or different (named on stdout), 2 wrong usage, 130 interrupted.");
}

}  // namespace

format::Verb publish_verb() {
  return format::make_verb("publish", "Put a packed repository on the Hugging Face Hub", add_publish_options,
                           run_publish);
}

}  // namespace dspack::reshard
