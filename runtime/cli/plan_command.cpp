// dsrun plan DIR: what a run would take and how fast it would be.
#include "format/cli/output.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/plan_text.h"
#include "runtime/cli/remote_options.h"
#include "runtime/model/inventory.h"
#include "runtime/storage/open_storage.h"

namespace dspack::runtime {

Result<int> run_plan(const PlanOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const auto repository, open_place(options.folder, options.load.remote, stop));
  Outlook outlook;
  TRY_ASSIGN(outlook.config, read_model_config(*repository, stop));
  TRY_ASSIGN(auto checkpoint, open_catalogue(*repository, outlook.config.layers, stop));
  if (auto* place = dynamic_cast<CompletedPlace*>(repository.get())) {
    outlook.absent = place->absent_weights();
    outlook.absent_from = place->rest_address();
  }
  TRY(refuse_unknown_tensors(checkpoint, outlook.config));
  TRY_ASSIGN(ChosenDevice chosen,
             choose_device(options.load.device,
                           {.threads = options.load.threads, .instruction_set = options.load.instruction_set}));
  TRY_ASSIGN(const OpenedStorage opened,
             open_storage(*repository, checkpoint,
                          {.io = options.load.io, .verify = options.load.verify, .device = &chosen.host()}, stop));
  CheckpointFiles files(*opened.storage);
  TRY_ASSIGN(outlook.plan, plan_load(chosen, files, *repository, outlook.config, options.load, stop));
  outlook.device = chosen.device().description();
  outlook.precision = chosen.precision();
  note(chosen.note());
  TRY(measure(chosen, files, options, outlook, stop));
  if (options.json) {
    format::print_json(to_json(outlook, options).dump(2) + "\n");
    return 0;
  }
  format::print_out(to_text(outlook, options));
  const std::string tight = memory_note(outlook.plan.memory, options.load.policy);
  if (!tight.empty()) format::print_out("note: " + tight + "\n");
  return 0;
}

}  // namespace dspack::runtime
