// reshard without a verb: packs a checkpoint. Its options are the recipe, the source, the output and the jobs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/seconds.h"
#include "format/base/size.h"
#include "format/cli/option_table.h"
#include "format/cli/output.h"
#include "format/file_system.h"
#include "format/http/headers.h"
#include "format/json.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/plan/recipe.h"
#include "reshard/run/repack.h"
#include "reshard/run/run_state.h"
#include "reshard/run/stream.h"
#include "reshard/verbs/unpacked_repository.h"

namespace dspack::reshard {
namespace {

/// The options that are shorthand for a recipe file, and the recipe that they make.
struct RecipeFlags {
  std::string file;           // a path, or the name of an installed recipe; empty: `recipe` holds the options
  bool has_grouping = false;  // --by was given
  Recipe recipe;
};

/// Appends the result of `parse` for each text.
template <class T>
format::OptionTable::Take appender(std::vector<T>& into, Result<T> (*parse)(std::string_view)) {
  return [&into, parse](const std::string& text) -> Result<void> {
    TRY_ASSIGN(T parsed, parse(text));
    into.push_back(std::move(parsed));
    return {};
  };
}

/// A name without a folder or extension refers to an installed recipe, unless such a file exists here.
format::Path recipe_file(const std::string& named) {
  format::FileSystem& files = format::posix_file_system();
  const auto exists = [&files](const format::Path& path) {
    const auto info = files.stat(path);
    return info && info->has_value();
  };
  if (named.find_first_of("/.") != std::string::npos || exists(named)) return named;
  const auto program = files.read_link("/proc/self/exe");
  if (!program || !*program) return named;
  const auto installed = ((*program)->parent_path() / "../share/dspack/recipes" / (named + ".json")).lexically_normal();
  return exists(installed) ? installed : format::Path(named);
}

/// Adds --by, --recipe and all options that go with --by.
void add_recipe_options(format::OptionTable& table, RecipeFlags& flags) {
  Recipe& recipe = flags.recipe;
  table.heading("Recipe");
  auto file =
      table.add("--recipe", "FILE|NAME", flags.file,
                "A recipe file, or the name of one that was installed (by-layer), in place of the other options "
                "here; it can also hold a layer map (docs/recipes.md)");
  const auto take_grouping = [&flags](const std::string& text) -> Result<void> {
    TRY_ASSIGN(flags.recipe.by, format::parse_grouping(text));
    flags.has_grouping = true;
    return {};
  };
  table
      .take("--by", "GROUPING", take_grouping,
            "How to group: expert (one file for each routed expert), expert:N (for N of a layer), layer (for all of a "
            "layer) or shard:SIZE (files of up to SIZE bytes, as 5GB or 4GiB)")
      .excludes(file);
  table
      .each("--include", "SELECTOR", appender(recipe.selection.include, parse_selector),
            "Take only tensors that match: \"layers=3-5\", \"layers=3 experts=0-127\", \"role=routed_expert\", "
            "\"name=PATTERN\"; repeatable. What is not needed is not read")
      .excludes(file);
  table
      .each("--exclude", "SELECTOR", appender(recipe.selection.exclude, parse_selector),
            "Of these, leave out tensors that match")
      .excludes(file);
  table
      .each("--transform", "KIND", appender(recipe.transforms, parse_transform),
            "Change weights: " + transform_help() + "; a selector may follow: \"fp8-to-bf16 role=attention\"")
      .excludes(file);
  table
      .add("--compress", "HOW", recipe.zstd_level, parse_compression,
           "Store weight files compressed, as zstd or zstd:LEVEL: smaller, and read by dsrun alone")
      .excludes(file);
  table
      .flag("--dedupe", recipe.dedupe,
            "Store equal tensors once, as DeepSeek-V3's two embeddings and output heads are (unpack gives both back)")
      .excludes(file);
  table.flag("--drop-mtp", recipe.drop_mtp, "Leave out the multi-token-prediction module").excludes(file);
}

/// The recipe from the file, if one is named, else from the options.
Result<Recipe> recipe_of(const RecipeFlags& flags) {
  if (flags.file.empty()) return flags.recipe;
  const format::Path file = recipe_file(flags.file);
  TRY_ASSIGN(const std::string text,
             format::read_text(format::posix_file_system(), file, format::kRecipeDocument.bytes));
  auto recipe = parse_recipe(text);
  return recipe ? std::move(recipe) : recipe.error().in(file.string());
}

constexpr char kDefaultSource[] = "deepseek-ai/DeepSeek-V3";

struct RepackFlags {
  NetworkFlags network;
  std::string source;  // empty: complete() sets kDefaultSource
  bool is_default_source = false;
  RecipeFlags recipe;
  std::string out;
  std::optional<Part> part;   // absent: the whole repack
  std::string checksum_list;  // a file written by sha256sum; empty: none
  unsigned jobs = 0;          // 0: default_jobs
  bool dry_run = false;
  bool yes = false;

  Result<void> complete() {
    is_default_source = source.empty();
    if (is_default_source) source = kDefaultSource;
    const bool names_recipe = recipe.has_grouping || !recipe.file.empty();
    if (names_recipe && (!out.empty() || dry_run)) return {};
    return invalid("--by GROUPING (or --recipe FILE) and --out DIR are required, or a verb");
  }
};

/// Default of --jobs: files of a folder that are read at a time, or the maximum number of connections.
unsigned default_jobs(const format::Repository& source) {
  constexpr unsigned kFiles = 4;
  constexpr unsigned kConnections = 16;  // a run starts with a few and adds more only while that raises the rate
  return source.kind() == format::RepositoryKind::local ? kFiles : kConnections;
}

/// The number of connections that a far line may take, for a plan that copies; converting and compressing are slower
/// than any line, and each shard under way holds tensors.
unsigned useful_jobs(const RepackOutlook& outlook, const format::Repository& source, unsigned otherwise) {
  const Plan& plan = outlook.plan;
  if (source.is_local() || plan.recipe.zstd_level || !plan.recipe.transforms.empty()) return otherwise;
  return connections_within_memory(plan.shards.size(), outlook.source.tensors().size());
}

using format::human_bytes;
using format::print_out;

/// Scales are read separately when a weight that needs them is converted, even if they are in another shard.
struct ScaleReads {
  uint64_t requests = 0;
  uint64_t bytes = 0;
};

ScaleReads scale_reads(const RepackOutlook& outlook) {
  ScaleReads reads;
  for (const std::vector<Copy>& copies : outlook.plan.shards) {
    std::optional<uint32_t> last;  // several tensors may be made from one
    for (const Copy& copy : copies) {
      if (copy.needs.empty() || last == copy.tensor) continue;
      last = copy.tensor;
      reads.requests += copy.needs.size();
      for (const uint32_t needed : copy.needs)
        reads.bytes += outlook.source.tensors()[needed].range.size();
    }
  }
  return reads;
}

void print_part(const RepackOutlook& outlook, Part part) {
  const Plan& plan = outlook.plan;
  const std::vector<uint64_t> shards = shards_of(plan, part);
  uint64_t bytes = 0;
  for (const uint64_t shard : shards)
    bytes += shard_bytes(plan, outlook.source, shard);
  const std::vector<uint64_t> own = bytes_per_file(plan, shards);
  uint64_t whole_files = 0;
  uint64_t shared_files = 0;
  for (size_t file = 0; file < own.size(); ++file) {
    if (own[file] == plan.files[file].size_bytes)
      ++whole_files;
    else if (own[file] != 0)
      ++shared_files;
  }
  print_out(fmt::format("part     {}: {} of {} source shards, {}; {} files wholly, {} with other parts\n",
                        to_string(part), shards.size(), outlook.source.files().size(), exact_size_words(bytes),
                        whole_files, shared_files));
}

void print_outlook(const RepackOutlook& outlook, const format::Repository& repository, std::optional<Part> part,
                   const DiskUse& use) {
  const format::Checkpoint& source = outlook.source;
  print_out(fmt::format("source   {}: {} files, {} tensors, {} routed experts, {}\n", brief(repository.description()),
                        source.files().size(), source.tensors().size(), source.experts().size(),
                        human_bytes(source.payload_bytes())));
  const Plan& plan = outlook.plan;
  const auto whole = std::ranges::count_if(plan.reads, &ShardRead::whole);
  uint64_t ranges = 0;
  for (const ShardRead& read : plan.reads)
    ranges += read.whole ? 0 : read.ranges.size();
  const std::string parts = ranges == 0 ? "" : fmt::format(" and {} of parts", ranges);
  print_out(fmt::format("to read  {} in {} requests of whole shards{}, {} other files ({})\n",
                        exact_size_words(plan.source_bytes), whole, parts, outlook.companions.size(),
                        human_bytes(outlook.companion_bytes)));
  if (const ScaleReads scales = scale_reads(outlook); scales.requests != 0) {
    print_out(fmt::format("         {} of scales once more, in {} requests, when their weights are converted\n",
                          exact_size_words(scales.bytes), scales.requests));
  }
  if (!plan.complete) {
    print_out(fmt::format("to keep  {} tensors and {} routed experts of these, {}\n", plan.result.tensors().size(),
                          plan.result.experts().size(), human_bytes(plan.result.payload_bytes())));
  }
  print_out(fmt::format("to write {} in {} weight files\n", exact_size_words(outlook.plan.output_bytes),
                        outlook.plan.files.size()));
  if (part) print_part(outlook, *part);
  if (plan.recipe.zstd_level && !part) {
    print_out(fmt::format("disk     at most {} at once, if nothing can be compressed\n",
                          human_bytes(disk_bytes(outlook, use))));
  }
  if (const auto& layers = outlook.plan.recipe.layers) {
    const auto& map = std::get<format::LayerMap>(*layers);
    print_out(fmt::format("layers   {} ({} in all)\n", format::to_string(map), map.size()));
  }
}

/// Work on the Hub resumes at the commit that it started with, even if the branch has moved.
Result<std::unique_ptr<format::Repository>> open_source(const RepackFlags& flags, const Context& context) {
  format::RemoteOptions remote = context.remote;
  remote.local_links = format::LinkRule::inside;
  if (!flags.out.empty()) {
    TRY_ASSIGN(const auto begun, unfinished_work(flags.out, format::posix_file_system()));
    if (begun) remote.hub_pinned = begun->origin;
  }
  TRY_ASSIGN(auto repository, open_repository(flags.source, remote, format::posix_file_system(), context.stop));
  const auto hub = repository->hub_origin();
  const bool goes_on = hub && remote.hub_pinned && hub->asked == remote.hub_pinned->asked;
  if (goes_on && hub->asked != fmt::format("{}@{}", hub->repository, hub->commit)) {
    context.progress.note(
        fmt::format("{}: unfinished work on {} at commit {}; continuing with that commit (remove the folder to pack "
                    "the current commit of the name)",
                    flags.out, hub->asked, hub->commit));
  }
  return repository;
}

/// Warns of source bytes that were sealed without being checked against any declared digest.
void tell_of_unvouched(const RepackFlags& flags, const RepackOutlook& outlook, const format::Repository& repository,
                       const std::vector<uint64_t>& shards, const Context& context) {
  const uint64_t count = unvouched_shards(outlook, repository, shards);
  if (count == 0) return;
  context.progress.note(fmt::format(
      "note: nothing vouched for the bytes of {} of {} source shards: {} declares no digests of them. Compare with a "
      "list of their publisher, reshard verify {} --sha256 FILE, or with another copy, --source PLACE",
      count, shards.size(), format::without_password(repository.description()), flags.out));
}

Result<int> pack_part(const RepackFlags& flags, const RepackOutlook& outlook, format::Repository& repository,
                      const RepackOptions& options, Part part, const Context& context) {
  TRY_ASSIGN(const PartOutcome outcome, repack_part(outlook, repository, options, part, format::posix_file_system(),
                                                    context.progress, context.stop));
  if (outcome.repository_is_complete) {
    print_out(fmt::format("{}: complete already\n", flags.out));
    return 0;
  }
  tell_of_unvouched(flags, outlook, repository, shards_of(outlook.plan, part), context);
  const std::string next = outcome.done_parts == part.count
                               ? fmt::format("all parts are: reshard seal {} joins them", flags.out)
                               : fmt::format("{} of {} parts are done here", outcome.done_parts, part.count);
  print_out(fmt::format("{}: part {} is done, {} source shards ({} read now); {}\n", flags.out, to_string(part),
                        outcome.shards, human_bytes(outcome.read_bytes), next));
  return 0;
}

/// Whether the output folder has unfinished work or a finished repository: then the user is not asked again.
Result<bool> has_begun(const RepackFlags& flags) {
  TRY_ASSIGN(const auto begun, unfinished_work(flags.out, format::posix_file_system()));
  TRY_ASSIGN(const auto sealed, format::posix_file_system().stat(format::Path(flags.out) / format::kManifestPath));
  return begun || sealed;
}

// V3 has 15,000 files by expert, and the largest known model 25,000.
constexpr uint64_t kMaxFilesUnasked = 100'000;

/// A header of 100 MB can name millions of experts. File systems handle that many files badly, and they are hard to
/// remove again, so the user must confirm.
Result<bool> confirm_many_files(const RepackFlags& flags, const RepackOutlook& outlook) {
  const uint64_t count = outlook.plan.files.size();
  if (count <= kMaxFilesUnasked || flags.yes) return true;
  TRY_ASSIGN(const bool begun, has_begun(flags));
  if (begun) return true;
  const std::string what = fmt::format("{} would get {} weight files", flags.out, count);
  if (!format::can_ask()) {
    return Error{ErrorKind::conflict,
                 what + "; group into fewer (--by layer, --by shard:4GB), or give --yes if that is meant"};
  }
  if (format::ask_yes(fmt::format("reshard: {}; is that meant?", what))) return true;
  format::print_error("reshard: nothing was made; --by layer or --by shard:4GB makes fewer files");
  return false;
}

/// Without a named source the user may not know how large the default one is: print it and, on a terminal, ask before
/// the first byte of weights is read. Not for work that resumes or is complete.
Result<bool> confirm_default_source(const RepackFlags& flags, const RepackOutlook& outlook, const Context& context) {
  if (!flags.is_default_source) return true;
  TRY_ASSIGN(const bool begun, has_begun(flags));
  if (begun) return true;
  context.progress.note(fmt::format("no SOURCE is named, so this packs {}: {} to read, {}; {} needs {} of disk",
                                    kDefaultSource, human_bytes(outlook.plan.source_bytes),
                                    transfer_words(outlook.plan.source_bytes, flags.network.limit_rate, "download"),
                                    flags.out, human_bytes(outlook.plan.output_bytes)));
  if (flags.yes || !format::can_ask() || format::ask_yes("reshard: fetch and pack it?")) return true;
  format::print_error("reshard: nothing was fetched; name a SOURCE, or answer y (--yes does not ask)");
  return false;
}

Result<int> run_repack(const RepackFlags& flags, format::Process& process) {
  const auto begin = std::chrono::steady_clock::now();  // includes opening the source and planning
  const Context context = make_context(process, flags.network);
  TRY_ASSIGN(const Recipe recipe, recipe_of(flags.recipe));
  if (!flags.dry_run) TRY(format::try_output_folder(flags.out));
  context.progress.started(without_passwords("opening " + flags.source), 0, 0);
  TRY_ASSIGN(auto place, open_source(flags, context));
  const unsigned jobs = default_jobs(*place);
  TRY_ASSIGN(const auto repository, as_source(std::move(place), jobs, context.stop));
  RepackOptions options{.recipe = recipe,
                        .out = flags.out,
                        .jobs = flags.jobs != 0 ? flags.jobs : jobs,
                        .counters = context.remote.counters};
  if (!flags.checksum_list.empty()) {
    TRY_ASSIGN(options.declared, read_checksum_list(flags.checksum_list));
  }
  TRY_ASSIGN(const RepackOutlook outlook, prepare_repack(*repository, options, context.stop, &context.progress));
  if (flags.jobs == 0) options.jobs = useful_jobs(outlook, *repository, jobs);
  context.progress.finished();
  for (const std::string& warning : outlook.source.warnings())
    context.progress.note(format::NoteKind::warning, warning);
  for (const std::string& warning : outlook.plan.warnings)
    context.progress.note(format::NoteKind::warning, warning);
  const auto parts = std::ranges::count_if(outlook.plan.reads, [](const ShardRead& read) { return !read.whole; });
  if (options.declared && parts != 0) {
    context.progress.note(format::NoteKind::warning,
                          fmt::format("{} of {} shards are not read whole, so {} does not apply to them", parts,
                                      outlook.plan.reads.size(), flags.checksum_list));
  }
  if (flags.dry_run) {
    print_outlook(outlook, *repository, flags.part, disk_use(options));
    return 0;
  }
  TRY_ASSIGN(const bool goes_on, confirm_default_source(flags, outlook, context));
  if (!goes_on) return 1;
  TRY_ASSIGN(const bool meant, confirm_many_files(flags, outlook));
  if (!meant) return 1;
  if (flags.part) return pack_part(flags, outlook, *repository, options, *flags.part, context);
  TRY_ASSIGN(const RepackOutcome outcome,
             repack(outlook, *repository, options, format::posix_file_system(), context.progress, context.stop));
  if (outcome == RepackOutcome::already_complete) {
    print_out(fmt::format("{}: complete already\n", flags.out));
    return 0;
  }
  const double seconds = seconds_since(begin);
  tell_of_unvouched(flags, outlook, *repository, whole_scope(outlook.plan, flags.out).shards, context);
  print_out(fmt::format(
      "{}: sealed, {} tensors ({}) in {} weight files, {} routed experts; {}, {}/s\n", flags.out,
      outlook.plan.result.tensors().size(), human_bytes(outlook.plan.result.payload_bytes()), outlook.plan.files.size(),
      outlook.plan.result.experts().size(), duration_words(seconds),
      human_bytes(static_cast<uint64_t>(static_cast<double>(outlook.plan.source_bytes) / std::max(seconds, 1e-9)))));
  return 0;
}

constexpr char kAbout[] =
    "Repacks a DeepSeek-type checkpoint in one streaming pass, for instance into one safetensors file for each layer\n"
    "and each routed expert.\n"
    "\n"
    "SOURCE is a local folder, an http(s):// folder, or a repository on the Hugging Face Hub: org/name[@revision] or\n"
    "hf://org/name[@revision] or its address in a browser. All of a run reads the same commit.\n"
    "A run that was killed or lost its connection resumes when the same command is given again.";

constexpr char kExamples[] =
    "Examples:\n"
    "  reshard --by expert --out ./ds-packed                         deepseek-ai/DeepSeek-V3 from the Hub\n"
    "  reshard http://10.0.0.5/DeepSeek-V3/ --by expert --out ./ds-packed --jobs 8\n"
    "  reshard ./DeepSeek-V3 --by expert --out ./ds-packed --dry-run  what would be read and written\n"
    "  reshard ./DeepSeek-V3 --by layer --out ./ds-packed             one file for all routed experts of a layer\n"
    "  reshard --by layer --include layers=3-5 --out ./part           only layers 3-5; nothing else is downloaded\n"
    "  reshard --by expert --out ./ds-packed --part 2/4               a quarter of the work, on one of four machines\n"
    "  reshard seal ./ds-packed                                       joins the parts when all are done\n"
    "  reshard inspect ./ds-packed                                    totals by role and layer\n"
    "  reshard inspect ./DeepSeek-V3 --html map.html                  a page that shows where every expert lies\n"
    "  reshard verify ./ds-packed --source ./DeepSeek-V3              every digest, then every byte\n"
    "  reshard verify ./ds-packed --upstream                          that the bytes are those that the Hub declares\n"
    "  reshard repair ./ds-packed                                     fetches lost or damaged files again\n"
    "  reshard unpack ./ds-packed --exact --out ./DeepSeek-V3         the original shards again, byte for byte\n"
    "  reshard link ./ds-packed --out ./ds-flat                       a folder that vLLM and SGLang open\n"
    "  reshard seal ~/.cache/dspack/NAME                              what dsrun has fetched becomes a packed "
    "repository\n"
    "  reshard diff ./ds-packed org/other-model                       tensor by tensor\n"
    "  reshard publish ./ds-packed --repo ORG/NAME                    to the Hub; --dry-run prints the work";

void add_repack_options(format::OptionTable& table, RepackFlags& flags) {
  table.explain(kAbout);
  table.footer(kExamples);
  table
      .add("SOURCE", "", flags.source,
           "What to repack, also a packed repository that holds all of its source; links in a local folder must not "
           "lead out "
           "of it")
      .shows_default(kDefaultSource);
  add_recipe_options(table, flags.recipe);
  table.heading("Output");
  table.add("--out", "DIR", flags.out, "Folder for the packed repository");
  table.add(
      "--sha256", "FILE", flags.checksum_list,
      "Refuse source files that are not those of this list, which sha256sum wrote: \"hex  path\". What the Hub, a "
      "SHA256SUMS beside the source or its server's headers declare is always checked");
  table.add("--part", "I/N", flags.part, parse_part,
            "Do one of N parts, on this machine or another; each part reads other source shards. When all are "
            "done, reshard seal joins them");
  table.flag("--dry-run", flags.dry_run, "Print what would be read and written, and stop");
  table.flag(
      "-y,--yes", flags.yes,
      "Do not ask: without SOURCE on a terminal, whether to fetch the default one; and whether more than 100,000 "
      "weight files are meant, which are not made without a word");
  add_jobs(table, flags.jobs,
           "Source shards read at a time; bounds memory and connections. Over a network a run begins with 4 "
           "connections and adds more while that raises the rate; few shards are split into ranges. Default: "
           "4 of a folder; over a network up to 64 within 256 MiB, 16 where weights are converted or compressed");
  add_network_options(table, flags.network);
}

}  // namespace

format::Verb repack_verb() {
  format::Verb verb = format::make_verb("", "Repack a checkpoint", add_repack_options, run_repack);
  verb.aliases = {"pack"};
  return verb;
}

}  // namespace dspack::reshard
