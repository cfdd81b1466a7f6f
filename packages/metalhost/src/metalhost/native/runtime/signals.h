// What the processor finds: guard pages, traps, and the clock.
#pragma once

namespace metalhost {

// From now on a fault is reported and ends the program, as does the launch's time limit.
void catch_signals();

}  // namespace metalhost
