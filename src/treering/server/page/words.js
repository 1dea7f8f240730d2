// What the page says, in English, German and Spanish, and how it writes numbers, times and accuracies.
// In a text, {n} is filled in; a text with "|" has a singular and a plural, chosen by n.

import { byId, node } from "./nodes.js";

const TEXTS = {
  // key: [English, German, Spanish]
  skip: ["Skip to teaching", "Zum Lehren springen", "Saltar a enseñar"],
  about: ["Page", "Seite", "Página"],
  language: ["Language", "Sprache", "Idioma"],
  model: ["Model", "Modell", "Modelo"],
  newModel: ["New model", "Neues Modell", "Modelo nuevo"],
  modelName: ["Name of the new model", "Name des neuen Modells", "Nombre del modelo nuevo"],
  add: ["Add", "Anlegen", "Añadir"],
  lostConnection: ["The connection to treering is lost. Trying again…", "Die Verbindung zu treering ist unterbrochen. Neuer Versuch…", "Se perdió la conexión con treering. Reintentando…"],
  newToken: ["treering was started anew and has a new token. Open the link that it printed.", "treering wurde neu gestartet und hat ein neues Token. Öffnen Sie den Link, den es ausgegeben hat.", "treering se ha reiniciado y tiene un token nuevo. Abra el enlace que ha mostrado."],
  unreachable: ["treering could not be reached; try again when the connection is back.", "treering war nicht zu erreichen; versuchen Sie es wieder, wenn die Verbindung steht.", "No se pudo contactar con treering; inténtelo cuando vuelva la conexión."],
  noModel: ["There is no model yet. Name one to begin.", "Es gibt noch kein Modell. Geben Sie einem neuen einen Namen.", "Todavía no hay ningún modelo. Dé nombre a uno para empezar."],
  // The rings
  rings: ["Tree rings", "Jahresringe", "Anillos"],
  ringsLabel: ["Tree rings of {classes} in {steps}. Arrow keys move between the classes, Enter opens one.", "Jahresringe: {classes} in {steps}. Pfeiltasten wandern zwischen den Klassen, die Eingabetaste öffnet eine.", "Anillos: {classes} en {steps}. Las flechas recorren las clases y Intro abre una."],
  arc: ["{name}, step {step}, {score}", "{name}, Schritt {step}, {score}", "{name}, paso {step}, {score}"],
  nClasses: ["{n} class|{n} classes", "{n} Klasse|{n} Klassen", "{n} clase|{n} clases"],
  nSteps: ["{n} step|{n} steps", "{n} Schritt|{n} Schritten", "{n} paso|{n} pasos"],
  nPhotos: ["{n} photo|{n} photos", "{n} Foto|{n} Fotos", "{n} foto|{n} fotos"],
  treeCaption: ["{classes} in {steps}. The model keeps {photos} and takes {bytes}.", "{classes} in {steps}. Das Modell bewahrt {photos} auf und belegt {bytes}.", "{classes} en {steps}. El modelo guarda {photos} y ocupa {bytes}."],
  seed: ["A seed: this model has learnt nothing yet.", "Ein Samenkorn: Dieses Modell hat noch nichts gelernt.", "Una semilla: este modelo aún no ha aprendido nada."],
  seedHint: ["Name a class under Teach, give it some photos, do the same for a second class, and press Learn.", "Nennen Sie unter Lehren eine Klasse, geben Sie ihr einige Fotos, dann einer zweiten, und drücken Sie Lernen.", "En Enseñar, nombre una clase y déle unas fotos; haga lo mismo con una segunda y pulse Aprender."],
  seedGrows: ["The first ring is growing.", "Der erste Ring wächst.", "Está creciendo el primer anillo."],
  // Asking
  ask: ["Ask", "Fragen", "Preguntar"],
  askHint: ["Drop a photo here or paste it: what is it?", "Ein Foto hierher ziehen oder einfügen: Was ist das?", "Suelte o pegue aquí una foto: ¿qué es?"],
  askNothing: ["The model can be asked once it has learnt two classes.", "Fragen kann man, sobald das Modell zwei Klassen gelernt hat.", "Se le puede preguntar en cuanto haya aprendido dos clases."],
  choose: ["Photos…", "Fotos…", "Fotos…"],
  camera: ["Camera", "Kamera", "Cámara"],
  cameraLive: ["Live camera", "Live-Kamera", "Cámara en vivo"],
  cameraOff: ["Camera off", "Kamera aus", "Apagar la cámara"],
  noCamera: ["The browser gives no camera here: it demands https or localhost.", "Der Browser gibt hier keine Kamera frei: Er verlangt https oder localhost.", "El navegador no ofrece la cámara aquí: exige https o localhost."],
  cameraRefused: ["The camera could not be opened ({reason}). Allow it in the browser, or choose photos.", "Die Kamera ließ sich nicht öffnen ({reason}). Erlauben Sie sie im Browser, oder wählen Sie Fotos.", "No se pudo abrir la cámara ({reason}). Permítala en el navegador o elija fotos."],
  bestFive: ["The best answers", "Die besten Antworten", "Las mejores respuestas"],
  isUnknown: ["Unknown", "Unbekannt", "Desconocido"],
  mostLike: ["This is none of its classes, it thinks. It is most like {name} ({percent}).", "Es hält das für keine seiner Klassen. Am ähnlichsten ist {name} ({percent}).", "Cree que no es de ninguna de sus clases. Se parece más a {name} ({percent})."],
  nearest: ["The nearest photos it keeps", "Die ähnlichsten aufbewahrten Fotos", "Las fotos guardadas más parecidas"],
  likeness: ["{name}, likeness {n}", "{name}, Ähnlichkeit {n}", "{name}, parecido {n}"],
  askedBefore: ["Asked before", "Zuvor gefragt", "Preguntado antes"],
  teachThis: ["Teach this photo", "Dieses Foto lehren", "Enseñar esta foto"],
  // Teaching
  teach: ["Teach", "Lehren", "Enseñar"],
  className: ["Name of the class", "Name der Klasse", "Nombre de la clase"],
  classExample: ["for example, robin", "zum Beispiel Rotkehlchen", "por ejemplo, petirrojo"],
  classKnown: ["{name} is known, from {photos}. What you add makes it surer.", "{name} ist bekannt, aus {photos}. Was Sie dazugeben, macht die Klasse sicherer.", "{name} ya es conocida, con {photos}. Lo que añada la hará más segura."],
  classNew: ["{name} will be a new class.", "{name} wird eine neue Klasse.", "{name} será una clase nueva."],
  classHint: ["A folder with one folder per class needs no name.", "Ein Ordner mit einem Ordner je Klasse braucht keinen Namen.", "Una carpeta con una carpeta por clase no necesita nombre."],
  teachHint: ["Drop photos or whole folders here, or paste", "Fotos oder ganze Ordner hierher ziehen oder einfügen", "Suelte aquí fotos o carpetas enteras, o péguelas"],
  chooseFolder: ["Folder…", "Ordner…", "Carpeta…"],
  shutter: ["Hold for a burst", "Halten für eine Serie", "Mantener para una ráfaga"],
  nameFirst: ["Name the class for {photos}.", "Nennen Sie die Klasse für {photos}.", "Nombre la clase de {photos}."],
  notPhoto: ["This is not a photo.", "Das ist kein Foto.", "Esto no es una foto."],
  uploading: ["{n} on the way", "{n} unterwegs", "{n} en camino"],
  dismiss: ["Dismiss", "Schließen", "Cerrar"],
  tray: ["Tray", "Ablage", "Bandeja"],
  trayState: ["{classes} with {photos} in the tray; room for {room} more.", "{classes} mit {photos} in der Ablage; Platz für {room} weitere.", "{classes} con {photos} en la bandeja; caben {room} más."],
  isNew: ["new", "neu", "nueva"],
  isKnown: ["known", "bekannt", "conocida"],
  waitingPhoto: ["Remove photo {n} of {name}", "Foto {n} von {name} entfernen", "Quitar la foto {n} de {name}"],
  removeClass: ["Remove {name} from the tray", "{name} aus der Ablage entfernen", "Quitar {name} de la bandeja"],
  more: ["{n} more", "{n} weitere", "{n} más"],
  clearTray: ["Clear the tray", "Ablage leeren", "Vaciar la bandeja"],
  clearTrayAsk: ["Clear the tray?", "Ablage leeren?", "¿Vaciar la bandeja?"],
  clearTrayDetail: ["This throws away {photos}.", "Das wirft {photos} weg.", "Esto tira {photos}."],
  taken: ["{photos} taken for {name}", "{photos} für {name} aufgenommen", "{photos} tomadas para {name}"],
  // Learning
  learn: ["Learn", "Lernen", "Aprender"],
  effort: ["Effort", "Aufwand", "Esfuerzo"],
  usual: ["usual", "üblich", "normal"],
  fast: ["fast", "schnell", "rápido"],
  thorough: ["thorough", "gründlich", "minucioso"],
  learnEmpty: ["The tray is empty.", "Die Ablage ist leer.", "La bandeja está vacía."],
  learnTwo: ["A new model needs two classes or more.", "Ein neues Modell braucht mindestens zwei Klassen.", "Un modelo nuevo necesita dos clases o más."],
  learnUploading: ["Wait until all photos have arrived.", "Warten Sie, bis alle Fotos da sind.", "Espere a que lleguen todas las fotos."],
  learnBusy: ["This model is learning; the next step can begin when it is done.", "Dieses Modell lernt gerade; danach kann der nächste Schritt beginnen.", "Este modelo está aprendiendo; el paso siguiente podrá empezar cuando acabe."],
  busy: ["Not while this model is learning.", "Nicht, solange dieses Modell lernt.", "No mientras este modelo está aprendiendo."],
  learning: ["Learning", "Lernen", "Aprendizaje"],
  waiting: ["Waiting in the queue", "Wartet in der Schlange", "Esperando en la cola"],
  ahead: ["{n} before it", "{n} davor", "{n} por delante"],
  starting: ["Starting", "Beginnt", "Empezando"],
  reading: ["Reading the photos", "Liest die Fotos", "Leyendo las fotos"],
  solving: ["Solving the classifier", "Löst den Klassifikator", "Resolviendo el clasificador"],
  training: ["Training the network", "Trainiert das Netz", "Entrenando la red"],
  saving: ["Saving", "Speichert", "Guardando"],
  ended: ["Ending", "Schließt ab", "Terminando"],
  epoch: ["epoch {n} of {epochs}", "Epoche {n} von {epochs}", "época {n} de {epochs}"],
  rate: ["{n} images a second", "{n} Bilder je Sekunde", "{n} imágenes por segundo"],
  timeLeft: ["{time} left", "noch {time}", "quedan {time}"],
  solved: ["Solved: {score}. You can ask for these classes already, while training goes on.", "Gelöst: {score}. Nach diesen Klassen können Sie schon fragen; das Training geht weiter.", "Resuelto: {score}. Ya puede preguntar por estas clases mientras sigue el entrenamiento."],
  cancel: ["Cancel", "Abbrechen", "Cancelar"],
  done: ["Learnt in {time}: {classes}", "Gelernt in {time}: {classes}", "Aprendido en {time}: {classes}"],
  failed: ["Learning failed", "Das Lernen ist gescheitert", "El aprendizaje falló"],
  cancelled: ["Learning was cancelled. What was solved stays.", "Das Lernen wurde abgebrochen. Was gelöst war, bleibt.", "Se canceló el aprendizaje. Lo ya resuelto se queda."],
  helped: ["Training the network helped.", "Das Training des Netzes hat geholfen.", "Entrenar la red ayudó."],
  "did not help": ["Training the network did not help and was not kept.", "Das Training des Netzes half nicht und wurde verworfen.", "Entrenar la red no ayudó y no se conservó."],
  lostClass: ["{name} lost: {before} before, {after} now", "{name} hat verloren: vorher {before}, jetzt {after}", "{name} perdió: antes {before}, ahora {after}"],
  confused: ["{first} and {second} are confused ({n} time)|{first} and {second} are confused ({n} times)", "{first} und {second} werden verwechselt ({n}-mal)|{first} und {second} werden verwechselt ({n}-mal)", "Se confunden {first} y {second} ({n} vez)|Se confunden {first} y {second} ({n} veces)"],
  needy: ["{name} needs more photos (it has {n})", "{name} braucht mehr Fotos (bisher {n})", "{name} necesita más fotos (tiene {n})"],
  // Steps
  steps: ["What each step brought", "Was jeder Schritt brachte", "Qué aportó cada paso"],
  step: ["Step {n}", "Schritt {n}", "Paso {n}"],
  all: ["All classes", "Alle Klassen", "Todas las clases"],
  new: ["New classes", "Neue Klassen", "Clases nuevas"],
  old: ["Old classes", "Alte Klassen", "Clases antiguas"],
  oldBefore: ["before: {score}", "vorher: {score}", "antes: {score}"],
  score: ["{right} of {images}, {low} to {high} %", "{right} von {images}, {low} bis {high} %", "{right} de {images}, del {low} al {high} %"],
  noScore: ["not measured", "nicht gemessen", "sin medir"],
  noNew: ["More photos of known classes", "Mehr Fotos bekannter Klassen", "Más fotos de clases conocidas"],
  undo: ["Undo", "Zurücknehmen", "Deshacer"],
  undoHint: ["Undo goes back to step {n}.", "Zurücknehmen führt zu Schritt {n} zurück.", "Deshacer vuelve al paso {n}."],
  undoNone: ["There is no earlier version to go back to.", "Es gibt keine frühere Fassung, zu der man zurück könnte.", "No hay una versión anterior a la que volver."],
  undoAsk: ["Undo step {n}?", "Schritt {n} zurücknehmen?", "¿Deshacer el paso {n}?"],
  undoDetail: ["The model goes back to how it was after step {before}, with {classes}.", "Das Modell ist dann wieder wie nach Schritt {before}, mit {classes}.", "El modelo vuelve a como estaba tras el paso {before}, con {classes}."],
  undoGone: ["It then no longer knows {names}.", "Es kennt dann nicht mehr: {names}.", "Ya no conocerá: {names}."],
  // Classes
  classes: ["Classes", "Klassen", "Clases"],
  filter: ["Find a class", "Klasse suchen", "Buscar una clase"],
  order: ["Order", "Reihenfolge", "Orden"],
  byStep: ["newest first", "neueste zuerst", "más nuevas primero"],
  byName: ["by name", "nach Name", "por nombre"],
  byAccuracy: ["weakest first", "schwächste zuerst", "más débiles primero"],
  noneFound: ["No class has this in its name.", "Keine Klasse heißt so ähnlich.", "Ninguna clase lleva eso en su nombre."],
  lost: ["lost", "hat verloren", "perdió"],
  close: ["Close", "Schließen", "Cerrar"],
  classFacts: ["Learnt in step {step} from {photos}; {kept} kept.", "Gelernt in Schritt {step} aus {photos}; {kept} davon bewahrt.", "Aprendida en el paso {step} con {photos}; se guardan {kept}."],
  exemplar: ["Exemplar {n} of {name}", "Exemplar {n} von {name}", "Ejemplar {n} de {name}"],
  exemplars: ["Its best exemplars", "Die besten Exemplare", "Sus mejores ejemplares"],
  course: ["Accuracy by step", "Genauigkeit nach Schritt", "Acierto por paso"],
  noCourse: ["Its accuracy has not been measured.", "Ihre Genauigkeit wurde nicht gemessen.", "No se ha medido su acierto."],
  itLost: ["It lost more than chance explains: {before} before, {after} now.", "Sie hat mehr verloren, als der Zufall erklärt: vorher {before}, jetzt {after}.", "Ha perdido más de lo que explica el azar: antes {before}, ahora {after}."],
  notLost: ["It has lost nothing that chance does not explain.", "Sie hat nichts verloren, was der Zufall nicht erklärt.", "No ha perdido nada que no explique el azar."],
  teachMore: ["Teach it more photos", "Mehr Fotos lehren", "Enseñarle más fotos"],
  change: ["Change it", "Ändern", "Cambiarla"],
  changing: ["Changing…", "Wird geändert…", "Cambiando…"],
  newName: ["New name", "Neuer Name", "Nombre nuevo"],
  rename: ["Rename", "Umbenennen", "Renombrar"],
  mergeInto: ["Merge into", "Vereinigen mit", "Unir a"],
  merge: ["Merge", "Vereinigen", "Unir"],
  mergeAsk: ["Merge {gone} into {kept}?", "{gone} mit {kept} vereinigen?", "¿Unir {gone} a {kept}?"],
  mergeDetail: ["All photos of {gone} become photos of {kept}; {gone} is then gone, in every version.", "Alle Fotos von {gone} werden Fotos von {kept}; {gone} gibt es dann in keiner Fassung mehr.", "Todas las fotos de {gone} pasan a {kept}; {gone} desaparece de todas las versiones."],
  forget: ["Forget", "Vergessen", "Olvidar"],
  forgetAsk: ["Forget {name}?", "{name} vergessen?", "¿Olvidar {name}?"],
  forgetDetail: ["It is taken out of every version of the model, with its photos. Undo does not bring it back.", "Sie wird aus jeder Fassung des Modells entfernt, samt ihren Fotos. Zurücknehmen bringt sie nicht wieder.", "Se quita de todas las versiones del modelo, con sus fotos. Deshacer no la devuelve."],
  no: ["No, keep it", "Nein, behalten", "No, conservar"],
  // The page of the API
  apiTitle: ["The HTTP API of treering", "Die HTTP-API von treering", "La API HTTP de treering"],
  apiLead: ["What the page does, a program can do too. What is wrong is told as {\"error\": \"…\"} with a status from 400 on. The description for programs is at", "Was die Seite kann, kann auch ein Programm. Was nicht stimmt, steht in {\"error\": \"…\"} mit einem Status ab 400. Die Beschreibung für Programme steht unter", "Lo que hace la página, lo puede hacer un programa. Lo que falla se dice en {\"error\": \"…\"} con un estado de 400 o más. La descripción para programas está en"],
  back: ["To the page", "Zur Seite", "A la página"],
  operations: ["Operations", "Operationen", "Operaciones"],
  parameters: ["Parameters", "Parameter", "Parámetros"],
  body: ["Body", "Inhalt der Anfrage", "Cuerpo"],
  answers: ["Answers", "Antworten", "Respuestas"],
  example: ["With curl", "Mit curl", "Con curl"],
  required: ["required", "nötig", "obligatorio"],
  name: ["Name", "Name", "Nombre"],
  where: ["Where", "Wo", "Dónde"],
  type: ["Type", "Typ", "Tipo"],
  meaning: ["Meaning", "Bedeutung", "Significado"],
};

const LANGUAGES = { en: "English", de: "Deutsch", es: "Español" };
const KEPT = "treering-language";
let language = "en";
let locale = "en"; // the language with the reader's region: dates differ between en-GB and en-US
let plural = new Intl.PluralRules(locale);

function kept() {
  try { return localStorage.getItem(KEPT); } catch { return null; } // storage may be forbidden
}

/** Say something in the language in use. */
export function say(key, values = {}) {
  const forms = TEXTS[key][Object.keys(LANGUAGES).indexOf(language)].split("|");
  const text = forms.length > 1 && plural.select(values.n) !== "one" ? forms[1] : forms[0];
  return text.replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? number(values[name]) : values[name]));
}

export const number = (n, digits = 0) => new Intl.NumberFormat(locale, { maximumFractionDigits: digits }).format(n);
export const list = (names) => new Intl.ListFormat(locale).format(names);
export const photos = (n) => say("nPhotos", { n });
export const classes = (n) => say("nClasses", { n });

/** A share of 1 as a percentage. */
export const percent = (share) =>
  new Intl.NumberFormat(locale, { style: "percent", maximumFractionDigits: share > 0.1 ? 0 : 1 }).format(share);

/** An accuracy with its interval: "251 of 280, 86 to 93 %". */
export const score = (s) => (s ? say("score", s).replace(" %", "\u00a0%") : say("noScore"));

export function duration(seconds) {
  const [unit, n] = seconds < 90 ? ["second", Math.ceil(seconds)] : seconds < 7200 ? ["minute", Math.round(seconds / 60)] : ["hour", seconds / 3600];
  return new Intl.NumberFormat(locale, { style: "unit", unit, unitDisplay: "short", maximumFractionDigits: 1 }).format(n);
}

export function bytes(n) {
  const [unit, size] = n < 1e6 ? ["kilobyte", 1e3] : n < 1e9 ? ["megabyte", 1e6] : ["gigabyte", 1e9];
  return new Intl.NumberFormat(locale, { style: "unit", unit, maximumSignificantDigits: 3 }).format(n / size);
}

export const day = (iso) => new Intl.DateTimeFormat(locale, { dateStyle: "medium" }).format(new Date(iso));

/** Write the fixed texts of the page; `data-word`, `data-label` and `data-placeholder` name them. */
function translatePage() {
  document.documentElement.lang = language;
  for (const one of document.querySelectorAll("[data-word]")) one.textContent = say(one.dataset.word);
  for (const one of document.querySelectorAll("[data-label]")) one.setAttribute("aria-label", say(one.dataset.label));
  for (const one of document.querySelectorAll("[data-placeholder]")) one.placeholder = say(one.dataset.placeholder);
}

/** Take the language that was chosen before, or the browser's, and let the picker change it. */
export function startLanguage(onChange) {
  const picker = byId("language");
  picker.append(...Object.entries(LANGUAGES).map(([value, word]) => node("option", { value, lang: value }, word)));
  const use = (chosen) => {
    language = chosen in LANGUAGES ? chosen : "en";
    locale = navigator.languages.find((one) => one.split("-")[0] === language) ?? language;
    plural = new Intl.PluralRules(locale);
    picker.value = language;
    translatePage();
  };
  use(kept() ?? (navigator.language || "en").slice(0, 2));
  picker.addEventListener("change", () => {
    use(picker.value);
    try { localStorage.setItem(KEPT, language); } catch { /* it then lasts until the page is closed */ }
    onChange();
  });
}
