#include "runtime/cli/io_options.h"

#include <string>

namespace dspack::runtime {

void add_io_options(CLI::App& app, LoadOptions& load) {
  const auto take = [&load](const std::string& name) {
    const auto method = parse_io_method(name);
    if (!method) throw CLI::ValidationError("--io", name + " is none of auto, direct, buffered and mmap");
    load.io = *method;
  };
  app.add_option_function<std::string>("--io", take,
                                       "How weights are read from a disk (default: auto, by a short measurement)")
      ->type_name("auto|direct|buffered|mmap");
  app.add_flag("--verify", load.verify, "Check every expert against its digest when it is read");
}

}  // namespace dspack::runtime
