#include "reshard/cli/publish_options.h"

#include "format/hub/name.h"

namespace dspack::reshard {

CLI::App* declare_publish(CLI::App& app, PublishFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("publish", "Put a packed repository on the Hugging Face Hub");
  verb->add_option("DIR", flags.folder, "A sealed packed repository")->required();
  const auto take_name = [&flags](const std::string& text) {
    auto name = format::parse_repository_name(text);
    if (!name) throw CLI::ValidationError("--repo", name.error().message);
    flags.repository = *name;
  };
  verb->add_option_function<std::string>("--repo", take_name, "Where to; made if it is not there")
      ->required()
      ->type_name("ORG/NAME");
  auto* only_private = verb->add_flag("--private", flags.only_private, "Make it private; refuse one that is public");
  auto* branch = verb->add_option("--revision", flags.branch, "A branch other than main; made if it is not there")
                     ->type_name("BRANCH");
  auto* pull = verb->add_flag("--create-pr", flags.create_pull_request,
                              "Open a pull request with all of it, and leave the merging to others")
                   ->excludes(branch);
  auto* dry_run = verb->add_flag("--dry-run", flags.dry_run, "Say what would be done, and stop; needs no token");
  verb->add_flag("--check", flags.check_only,
                 "Only compare what is there with the manifest: every path, size and digest, no bytes read")
      ->excludes(dry_run)
      ->excludes(only_private)
      ->excludes(pull);
  add_jobs(*verb, flags.jobs, "Files read or sent at a time; bounds memory and connections");
  add_network_options(*verb, network);
  verb->footer(
      "Every file is first compared with its digest: what is not as it was sealed is not published. Manifest, index "
      "and\n"
      "card come last, so that readers never take an unfinished repository for whole; one that is there already is\n"
      "replaced through a pull request, which is merged last. Killed or interrupted, the same command goes on: it "
      "asks\n"
      "the Hub what it has.\n"
      "Exit status: 0 published (or equal), 1 failed or different (named on stdout), 2 wrong usage, 130 interrupted.");
  return verb;
}

}  // namespace dspack::reshard
