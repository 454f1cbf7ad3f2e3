# cmake -DIN=file -DOUT=file.inc -DNAME=symbol -P embed.cmake: a file's bytes as a 0-terminated C array.
file(READ ${IN} hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "static const char ${NAME}[] = {\n${bytes}0};\n")
