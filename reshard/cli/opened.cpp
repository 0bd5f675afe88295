#include "reshard/cli/opened.h"

#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/process.h"
#include "format/compressed/expanding_repository.h"

namespace dspack::reshard {

Result<Opened> open_place(const std::string& place, unsigned jobs, const Context& context) {
  TRY_ASSIGN(auto repository, open_repository(place, context.remote, format::posix_file_system(), context.stop));
  repository = format::make_expanding_repository(std::move(repository));
  TRY_ASSIGN(auto checkpoint, format::Checkpoint::open(*repository, jobs, context.stop));
  return Opened{std::move(repository), std::move(checkpoint)};
}

Result<Opened> open_packed(const std::string& place, unsigned jobs, const Context& context) {
  TRY_ASSIGN(Opened opened, open_place(place, jobs, context));
  if (opened.checkpoint.manifest()) return opened;
  return Error{ErrorKind::invalid,
               fmt::format("{}: not a packed repository (it has no {})", place, format::kManifestPath)};
}

Result<Declarations> read_checksum_list(const std::string& path) {
  TRY_ASSIGN(const std::string text, read_text(format::posix_file_system(), path, kMaxListBytes));
  return parse_checksum_list(text, path);
}

int fail(const Error& error) {
  format::print_error("reshard: " + format::printable(error.message));
  if (error.kind == ErrorKind::cancelled) format::print_error("reshard: run the same command again to go on");
  return format::exit_status(error);
}

}  // namespace dspack::reshard
