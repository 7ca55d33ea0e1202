// Compiled once for each instruction set, with MEMDECAY_ISA its name and the compiler's flags for it.
#include "mass.h"
#include "norms.h"
#include "read_keys.h"
#include "scores.h"

#define MEMDECAY_STRING2(x) #x
#define MEMDECAY_STRING(x) MEMDECAY_STRING2(x)
#define MEMDECAY_JOIN2(a, b) a##b
#define MEMDECAY_JOIN(a, b) MEMDECAY_JOIN2(a, b)

namespace memdecay {

const Table& MEMDECAY_JOIN(table_, MEMDECAY_ISA)() {
  static const Table table = {MEMDECAY_STRING(MEMDECAY_ISA), MEMDECAY_ISA::attention_mass, MEMDECAY_ISA::observe,
                              MEMDECAY_ISA::score, MEMDECAY_ISA::salience, MEMDECAY_ISA::read_keys, MEMDECAY_ISA::key_norms};
  return table;
}

}  // namespace memdecay
