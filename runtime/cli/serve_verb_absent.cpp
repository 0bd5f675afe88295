#include "runtime/cli/places.h"
#include "runtime/cli/verbs.h"

namespace dspack::runtime {
namespace {

Result<int> refuse(const ServeOptions& /*options*/, format::Process& /*process*/) {
  return Error{ErrorKind::unsupported, "this dsrun was built without its server (cmake -D DSPACK_SERVE=ON)"};
}

void add_folder_option(format::OptionTable& table, ServeOptions& options) {
  table.explain("Not in this build (cmake -D DSPACK_SERVE=ON): serves a model over HTTP.");
  add_folder(table, options.folder);
}

}  // namespace

Result<void> ServeOptions::complete() {
  return {};
}

format::Verb serve_verb() {
  return format::make_verb("serve", "Not in this build: serve a model over HTTP", add_folder_option, refuse);
}

}  // namespace dspack::runtime
