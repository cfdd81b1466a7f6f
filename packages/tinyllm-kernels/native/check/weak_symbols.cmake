# Lists the weak symbols of one instruction set's objects that other instruction sets may define too.
#
# The linker keeps one copy of a weak symbol, such as an inline function or a template instance. If
# that copy was compiled for AVX-512, every processor would run it. Symbols with the name of the
# instruction set in their namespace are safe. The others are appended to OUTPUT, one a line.
#
#   cmake -DNM=nm -DNAME=avx2 -DOBJECTS=a.o;b.o -DOUTPUT=weak_symbols.txt -P weak_symbols.cmake
execute_process(COMMAND ${NM} --defined-only ${OBJECTS} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  file(APPEND ${OUTPUT} "${NAME}: ${NM} failed, nothing was checked\n")
  return()
endif()
string(REGEX MATCHALL "[^ \n]+ [WVuw] [^\n]+" weak "${symbols}")
foreach(line IN LISTS weak)
  string(REGEX REPLACE "^[^ ]+ [WVuw] " "" symbol "${line}")
  # Mangled names state the length before the name: 4avx2.
  string(LENGTH ${NAME} length)
  if(NOT symbol MATCHES "${length}${NAME}" AND NOT symbol MATCHES "^DW\\.ref\\.")
    file(APPEND ${OUTPUT} "${NAME}: ${symbol}\n")
  endif()
endforeach()
