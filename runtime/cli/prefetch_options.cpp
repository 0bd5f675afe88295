#include "runtime/cli/prefetch_options.h"

#include <map>
#include <string>

namespace dspack::runtime {

void add_prefetch_option(CLI::App& app, PrefetchMode& mode) {
  static const std::map<std::string, PrefetchMode> kModes = {
      {"off", PrefetchMode::off}, {"on", PrefetchMode::on}, {"auto", PrefetchMode::automatic}};
  app.add_option_function<std::string>(
         "--prefetch", [&mode](const std::string& name) { mode = kModes.at(name); },
         "Read experts that the next layer is likely to pick while the disk would be idle; auto (default): as long as "
         "that is measured to pay")
      ->check(CLI::IsMember({"auto", "off", "on"}).description(""))
      ->type_name("auto|off|on");
}

}  // namespace dspack::runtime
