// Gets photos out of what was dropped, pasted or chosen; a photo in a folder comes with the folder's name as its class.

const CLUTTER = /^(\.|thumbs\.db$|desktop\.ini$)/i; // what systems put into folders themselves

async function walk(entry, folder) {
  if (entry.isFile) {
    if (CLUTTER.test(entry.name)) return [];
    return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), folder }];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // browsers give 100 at a time
    if (!some.length) return found;
    for (const inside of some) found.push(...(await walk(inside, entry.name)));
  }
}

/** Return the files of a drop or a paste, each as {file, folder}; folder is null for a file that lay in none. */
export async function filesOf(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  // Entries and files must be taken before the first await: the browser empties the list after the event.
  const taken = items.map((item) => [item.webkitGetAsEntry?.(), item.getAsFile()]);
  const found = [];
  for (const [entry, file] of taken) {
    if (entry) found.push(...(await walk(entry, null)));
    else if (file) found.push({ file, folder: null });
  }
  return found;
}

/** Return the files of a file input, each as {file, folder}. */
export const chosenFiles = (input) =>
  [...input.files]
    .filter((file) => !CLUTTER.test(file.name))
    .map((file) => ({ file, folder: file.webkitRelativePath.split("/").at(-2) ?? null }));

/** Whether a file may be a photo: one whose type is not known is for the server to judge. */
export const mayBePhoto = (file) => !file.type || file.type.startsWith("image/");
