// docs/guide/custom-policy.md: a policy handed to an engine.
#include <memory>

#include "moert/engine.h"

class First : public moert::ResidencyPolicy {
 public:
  int Victim(const moert::VictimSnapshot&) override { return 0; }
};

void Run() {
@BLOCK@}
