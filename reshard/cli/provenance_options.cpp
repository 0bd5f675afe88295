#include "reshard/cli/provenance_options.h"

#include "reshard/verbs/unpack.h"

namespace dspack::reshard {
CLI::App* declare_verify(CLI::App& app, VerifyFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("verify", "Check every digest of a packed repository");
  verb->add_option("DIR", flags.folder, "Packed repository")->required();
  verb->add_option("--source", flags.source, "Compare every tensor with this checkpoint too, byte for byte");
  auto* upstream =
      verb->add_option("--upstream", flags.upstream_source,
                       "Rebuild each source shard's SHA-256 from the packed bytes and compare it with what SOURCE "
                       "declares, reading none of its bytes: the LFS digests of a repository on the Hub, or the file "
                       "SHA256SUMS of a folder. Default: where the repository was packed from");
  upstream->expected(0, 1)->type_name("[SOURCE]");
  verb->add_option("--sha256", flags.checksum_list, "The same against a list that sha256sum wrote: \"hex  path\"")
      ->type_name("FILE");
  add_jobs(*verb, flags.jobs, "Files read at a time");
  add_network_options(*verb, network);
  verb->parse_complete_callback([&flags, upstream] { flags.upstream = upstream->count() > 0; });
  verb->footer("Exit status: 0 all of it fits, 1 something differs (named on stdout) or could not be checked.");
  return verb;
}

CLI::App* declare_repair(CLI::App& app, RepairFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("repair", "Fetch again what a packed repository has lost, or what is damaged");
  verb->add_option("DIR", flags.folder, "Folder of a packed repository, complete or unfinished")->required();
  verb->add_option("--source", flags.source,
                   "What it was packed from, or another copy of the packed repository: folder, http(s):// folder or "
                   "org/name[@revision]. Default: the repository on the Hub, and the commit, that it was packed from");
  verb->add_flag("--quick", flags.quick, "Look at presence and size of the files alone, and read none that is there");
  add_jobs(*verb, flags.jobs, "Files read at a time");
  add_network_options(*verb, network);
  verb->footer(
      "Every file is compared with its digest. Of the source only the tensors are read that are missing or differ; a\n"
      "file gets its name back when it has the digest that was sealed. An unfinished repository is repaired as far as\n"
      "it has come, and then completed. Killed or interrupted, the same command goes on.\n"
      "Exit status: 0 all is as it was sealed, 1 something could not be had again (named on stdout, or on stderr).");
  return verb;
}

CLI::App* declare_unpack(CLI::App& app, UnpackFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("unpack", "Make ordinary shards of a packed repository");
  verb->add_option("DIR", flags.folder, "Packed repository: folder, http(s):// folder or org/name[@revision]")
      ->required();
  verb->add_option("--out", flags.out, "Folder for the shards")->required();
  auto* exact = verb->add_flag("--exact", flags.exact,
                               "The shards that it was made from, byte for byte, each with its recorded SHA-256");
  flags.shard_bytes = kDefaultShardBytes;
  add_size(*verb, "--shard-size", flags.shard_bytes, "Bytes of tensors in one shard: 5GB, 512MiB, ...")
      ->default_str("5GB")
      ->excludes(exact);
  add_jobs(*verb, flags.jobs, "Shards made at a time; bounds memory and connections");
  add_network_options(*verb, network);
  verb->footer("Killed or interrupted, the same command goes on: finished shards stay, others start again.");
  return verb;
}

CLI::App* declare_seal(CLI::App& app, SealFlags& flags, NetworkFlags& network) {
  CLI::App* verb =
      app.add_subcommand("seal", "Make a packed repository of what parts have packed, or of what dsrun has fetched");
  verb->add_option("DIR", flags.folder, "The --out of reshard --part, or a folder below dsrun's --cache")->required();
  verb->add_option("--source", flags.source,
                   "Of parts: where their source is for this machine, if that is another place than for them");
  add_jobs(*verb, flags.jobs, "Files read at a time");
  add_network_options(*verb, network);
  verb->footer(
      "Parts: all must be done; the result is that of one process, byte for byte. A folder of dsrun's: nothing may be\n"
      "missing. Killed or interrupted, the same command goes on.");
  return verb;
}

CLI::App* declare_diff(CLI::App& app, DiffFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("diff", "Compare two checkpoints, packed or ordinary, tensor by tensor");
  verb->add_option("A", flags.a, "Local folder, http(s):// folder or org/name[@revision]")->required();
  verb->add_option("B", flags.b, "Likewise")->required();
  verb->add_flag("--json", flags.json, "One JSON object a difference");
  verb->add_flag("--tensors-only", flags.tensors_only, "Leave out config, tokenizer and other files without weights");
  add_jobs(*verb, flags.jobs, "Files read at a time");
  add_network_options(*verb, network);
  verb->footer(
      "A packed repository's own digests are believed (verify checks them); of an ordinary checkpoint only tensors "
      "are\n"
      "read that need it. The index is not compared: it says where tensors lie, not what they are.\n"
      "Exit status: 0 equal, 1 different, or failed (stderr says why).");
  return verb;
}

}  // namespace dspack::reshard
