// The parts of the page of `reshard inspect --html`, as they stand in reshard/verbs/inspect_page/; the build makes them
// constants (cmake/embed_page.cmake).
// Threads: constants.
#pragma once

#include <string_view>

namespace dspack::reshard {

/// The frame, with "{{name}}" where the other parts belong.
extern const std::string_view kPageFrame;
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace dspack::reshard
