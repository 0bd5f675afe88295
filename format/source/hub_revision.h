// Which commit a revision means now, asked once: all later requests name the commit.
// Threads: thread-safe. Errors: network (no such repository or revision, gated, private, not reached: each says what to
// do), invalid (not the Hub's protocol).
#pragma once

#include <stop_token>
#include <string>

#include "format/source/hub_name.h"
#include "format/source/patient_client.h"

namespace dspack::format {

struct HubDoor {
  std::string endpoint;  // without a trailing slash
  std::string token;     // sent to that scheme, host and port only; empty: none
};

struct HubCommit {
  std::string repository;  // the present name of one that was renamed
  std::string commit;
};

/// One HEAD request for config.json, whose answer names the commit whether the file is there or not, and tells at once
/// if its files may not be read; a renamed repository takes one more. Where a server names it only for files that are
/// there, the API is asked.
[[nodiscard]] Result<HubCommit> resolve_revision(PatientClient& client, const HubDoor& door, const HubName& asked,
                                                 const std::stop_token& stop);

}  // namespace dspack::format
