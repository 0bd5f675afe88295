// How many connections are worth having to one place: a few at first, more as long as more bring more, fewer once the
// server refuses. The rule alone: no clock, no transfers. Threads: a plain value. Errors: none.
//
//   measured at n connections  ->  2n (once a growth has failed or was refused: n + n/4)
//   at least a quarter of the growth shows in the rate  ->  grow again
//   less  ->  back to n; the next attempt after 4, 8, ... 64 intervals
//   refused  ->  n/2, and no growth for 20 intervals
//
// The interval after a change is left out: connections that have just begun are not up to speed.
#pragma once

namespace dspack::format {

class ConnectionGrowth {
 public:
  /// Preconditions: 1 <= first <= most.
  ConnectionGrowth(unsigned first, unsigned most) : limit_(first), most_(most) {}

  /// How many may be used now, in 1 ... most.
  [[nodiscard]] unsigned limit() const { return limit_; }
  [[nodiscard]] unsigned most() const { return most_; }

  /// An interval has ended in which limit() connections were in use.
  void measured(double bytes_per_second);
  /// The server wants fewer requests (429, 503).
  void refused();

 private:
  void grow(double bytes_per_second);
  void change_to(unsigned limit);

  unsigned limit_;
  unsigned most_;
  unsigned grown_from_ = 0;  // the limit before a growth that has not been judged yet; 0: there is none
  double rate_before_ = 0;   // bytes per second with grown_from_ connections
  bool doubles_ = true;
  bool settles_ = true;      // the next interval is left out
  unsigned pause_ = 0;       // intervals without growth that are left
  unsigned next_pause_ = 4;  // after a growth that brings nothing
};

}  // namespace dspack::format
